"""The store: named tensors, keys whose values servers keep, under a policy, from synchronous to free of locks.

Private: arrays, common_memory, dependent, holding, keeper, key, row_split, terms, unlocked, versions.
"""
