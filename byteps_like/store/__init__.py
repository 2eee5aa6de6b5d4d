"""The store: named tensors, keys whose values servers keep, under a policy, from synchronous to free of locks.

Private: arrays, common_memory, content, dependent, holding, keeper, key, row_split, rows, unlocked.
"""

from byteps_like.store.functions.registry import Pushed, command, function

__all__ = ["Pushed", "command", "function"]
