"""The store: named tensors, keys whose values servers keep, under a policy, from synchronous to free of locks.

Private: content, keeper, key, open_tensor, portions, row_split, rows.
"""

from byteps_like.store.filters.filter import KeyedRows, PayloadFilter, RowFilter
from byteps_like.store.filters.registry import table_filter
from byteps_like.store.functions.registry import Pushed, command, function
from byteps_like.store.gradient_coding import GradientCoding
from byteps_like.store.kv import KV
from byteps_like.store.store import Store
from byteps_like.store.tables.table import Table
from byteps_like.store.upper.upper import Upper

__all__ = [
    "KV",
    "GradientCoding",
    "KeyedRows",
    "PayloadFilter",
    "Pushed",
    "RowFilter",
    "Store",
    "Table",
    "Upper",
    "command",
    "function",
    "table_filter",
]
