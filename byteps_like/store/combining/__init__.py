"""Ways of combining: how the contributions of a version become one gradient.

Private: products.
"""
