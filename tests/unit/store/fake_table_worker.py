"""A worker whose servers keep tables, in NumPy: what KV asks for happens at once, or when it is let."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import string_at
from typing import Any

import numpy as np

from byteps_like.errors import DeadlineError
from byteps_like.portable.row_numbers import SentRows
from byteps_like.portable.transfer import memory_at
from byteps_like.wire.note import Applied, Note
from byteps_like.worker.api import Declared, Partition, TensorSpec
from byteps_like.worker.keeping import Outcome
from byteps_like.worker.local import LocalWorker
from byteps_like.worker.tables import BUCKETS, RowList, RowsAt, TableShards, TableSpec


class FakeHandle:
    """Done once it is let."""

    def __init__(self, found: Sequence[Outcome], ranges: Sequence[bytes] = ()) -> None:
        self.found, self.kept_ranges = found, ranges
        self.let = True

    def done(self) -> bool:
        return self.let

    def wait(self, timeout: float | None = None) -> None:
        if not self.let:
            raise DeadlineError(f"not after {timeout}")

    def outcomes(self) -> Sequence[Outcome]:
        return self.found

    def ranges(self) -> Sequence[bytes]:
        return self.kept_ranges


class FakeTable:
    """Rows by id, and the versions of its shards."""

    def __init__(self, declared: Declared, spec: TableSpec) -> None:
        self.declared, self.spec = declared, spec
        self.shards = TableShards(declared)
        self.kind = np.dtype(declared.spec.dtype.name.lower())
        self.rows: dict[int, np.ndarray] = {}
        self.newer: dict[int, int] = {}
        """Of each row the version of its shard."""
        self.versions = [0] * len(self.shards.firsts)
        self.notes: list[tuple[list[int], Note]] = []
        self.lists: list[list[int]] = []
        """That were made."""
        self.reads: list[list[int]] = []
        """Shards, of each read."""
        self.lets = True
        """Whether operations are done at once."""
        self.handles: list[FakeHandle] = []

    def row_list(self, address: int, count: int) -> RowList:
        made = SentRows(string_at(address, 8 * count))
        self.lists.append(ids_in(made))
        return made

    def change(self, spec: TableSpec) -> FakeHandle:
        self.spec = spec
        return FakeHandle([])

    def push(self, rows: Sequence[RowsAt], note: Note, *, priority: int | None = None) -> FakeHandle:
        self.notes.append(([one.shard for one in rows], note))
        for one in rows:
            ids = ids_in(one.rows)
            values = self._at(one)
            for key, row in zip(ids, values, strict=True):
                assert self.shards.owners[key >> 52] == one.shard
                self.rows[key] = self.rows.get(key, np.zeros(self.spec.width, self.kind)) + row
            self.versions[one.shard] += 1
            self.newer |= dict.fromkeys(ids, self.versions[one.shard])
        return self._done([one.shard for one in rows])

    def pull(self, rows: Sequence[RowsAt], *, priority: int | None = None) -> FakeHandle:
        self.reads.append([one.shard for one in rows])
        for one in rows:
            for place, key in zip(self._at(one), ids_in(one.rows), strict=True):
                place[...] = self.rows.get(key, 0)
        return self._done([one.shard for one in rows])

    def pull_range(
        self, low: int, high: int, *, since: Sequence[int] = (), most: int = 0, priority: int | None = None
    ) -> FakeHandle:
        known = since or [0] * len(self.versions)
        each = [
            [
                key
                for key in sorted(self.rows)
                if low <= key < high and self.shards.owners[key >> 52] == shard and self.newer[key] > known[shard]
            ][: most or None]
            for shard in range(len(self.versions))
        ]
        found = [np.array(ids, np.uint64).tobytes() + b"".join(self.rows[key].tobytes() for key in ids) for ids in each]
        handle = self._done(range(len(each)))
        handle.kept_ranges = found
        return handle

    def _at(self, one: RowsAt) -> np.ndarray:
        nbytes = len(one.rows) * self.spec.width * self.kind.itemsize
        memory = memory_at(one.address, nbytes) if nbytes else b""
        return np.frombuffer(memory, self.kind).reshape(-1, self.spec.width)

    def _done(self, shards: Sequence[int]) -> FakeHandle:
        handle = FakeHandle([Outcome(Applied.COUNTED, self.versions[shard]) for shard in shards])
        handle.let = self.lets
        self.handles.append(handle)
        return handle


def ids_in(rows: Any) -> list[int]:
    return [int(key) for key in np.frombuffer(rows.ids, np.uint64)]


class FakeTableWorker(LocalWorker):
    """Of a world of one with so many shards, in turn."""

    def __init__(self, shards: int = 3) -> None:
        super().__init__()
        self._count = shards
        self.table: FakeTable | None = None

    def declare(self, specs: Sequence[TensorSpec]) -> list[Declared]:
        parts = [Partition(bucket, 64 * bucket, 64, bucket % self._count, 0) for bucket in range(BUCKETS)]
        return [Declared(spec, 0, tuple(parts)) for spec in specs]

    def keep_table(self, declared: Declared, spec: TableSpec) -> FakeTable:
        self.table = FakeTable(declared, spec)
        return self.table
