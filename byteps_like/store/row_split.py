"""Ids of rows by the shards where they are. What has been split stays split, for keys that come again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byteps_like.store.arrays import Array, ids_of
from byteps_like.wire.crc32c import crc32c
from byteps_like.worker.tables import BUCKET_SHIFT, KeptTable, RowList

Ids = NDArray[np.uint64]

_KEPT = 64
"""Splits that are remembered, those used last."""


@dataclass(frozen=True)
class ShardRows:
    """Those of one shard."""

    shard: int
    rows: RowList
    where: slice | NDArray[np.intp]
    """Which of all keys they are."""

    def __len__(self) -> int:
        """How many."""
        return len(self.rows)

    def of(self, array: Array) -> Array:
        """Their rows of all, contiguous: as they lie there, where they lie side by side."""
        return array[self.where] if isinstance(self.where, slice) else np.take(array, self.where, axis=0)


@dataclass(frozen=True, eq=False)
class RowSplit:
    """Some ids, ascending, and what each shard has of them, in the order of shards; those that have none, too."""

    ids: Ids
    shards: tuple[ShardRows, ...]


class RowSplits:
    """Of one table. Thread-safe."""

    def __init__(self, table: KeptTable) -> None:
        self._table = table
        self._owners = np.array(table.shards.owners, np.uint32)
        self._known: OrderedDict[tuple[int, int], RowSplit] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, keys: Any) -> RowSplit:
        """Raises InvalidArgumentError for what can't be keys."""
        given = keys if isinstance(keys, np.ndarray) and keys.dtype == np.uint64 and keys.flags.c_contiguous else None
        ids = ids_of(keys) if given is None or given.ndim != 1 else given
        name = len(ids), crc32c(ids.data.cast("B") if len(ids) else b"")
        with self._lock:
            known = self._known.get(name)
        if known is None or not np.array_equal(known.ids, ids):
            known = self._split(ids_of(ids).copy())  # the caller may change its own
        self._remember(name, known)
        return known

    def _remember(self, name: tuple[int, int], split: RowSplit) -> None:
        with self._lock:
            self._known[name] = split
            self._known.move_to_end(name)
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)

    def _split(self, ids: Ids) -> RowSplit:
        owners = self._owners[ids >> np.uint64(BUCKET_SHIFT)]
        count = len(self._table.shards.firsts)
        return RowSplit(ids, tuple(self._own(ids, owners, shard) for shard in range(count)))

    def _own(self, ids: Ids, owners: NDArray[np.uint32], shard: int) -> ShardRows:
        places = np.flatnonzero(owners == shard)
        own = ids[places]
        rows = self._table.row_list(own.ctypes.data, len(own))
        if not len(places) or places[-1] - places[0] + 1 == len(places):
            begin = int(places[0]) if len(places) else 0
            return ShardRows(shard, rows, slice(begin, begin + len(places)))
        return ShardRows(shard, rows, places)
