"""Weight gradients that are computed later than the network needs others.

The package itself imports it; it imports gradients and what is below.

Private: layer, search, steps.
"""
