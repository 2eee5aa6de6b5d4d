"""Modules whose weights are rows of a table on servers: as torch.nn's, but for where the weights are.

Private: looked_up.
"""
