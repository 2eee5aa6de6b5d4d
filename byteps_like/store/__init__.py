"""The store: named tensors, keys whose values servers keep, under a policy, from synchronous to free of locks.

Private: arrays, common_memory, holding, keeper, key, unlocked.
"""
