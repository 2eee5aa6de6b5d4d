"""Training without a common step: servers keep the weights, and ranks contribute to them at their own pace.

Private: blocks, deltas, gradients, pushes, rules, trials, weights.
"""
