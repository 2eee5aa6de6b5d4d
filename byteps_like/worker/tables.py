"""What a worker does with tables whose rows servers keep: the seam between `byteps_like.store` and the runtime.

A table has rows of one width by u64 id. Ids are shared out over 4,096 buckets, by their highest 12 bits, and these over
shards, as partitions of a tensor are: each bucket stands for one. Plain addresses, sizes and texts, as in `worker.api`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol, runtime_checkable

from typing_extensions import override

from byteps_like.dtypes import DType
from byteps_like.wire.note import Note
from byteps_like.worker.api import ON_LOSS, Declared, TensorSpec
from byteps_like.worker.keeping import CallHandle, KeepHandle, KeepSpec, RangeHandle

BUCKETS = 4096
BUCKET_SHIFT = 52
"""An id's bucket is in the bits from here on."""
_BUCKET_BYTES = 64
"""The least that a partition may have: what a bucket counts for when they are shared out."""


def table_tensor(name: str, dtype: DType, on_loss: str = ON_LOSS[0], replicas: int = 1) -> TensorSpec:
    """The tensor whose partitions are the buckets of a table; it has no values. `on_loss`, `replicas`: see there."""
    shape = (BUCKETS, _BUCKET_BYTES // dtype.itemsize)
    return TensorSpec(
        name, dtype, shape, partition_bytes=_BUCKET_BYTES, row_bytes=_BUCKET_BYTES, on_loss=on_loss,
        replicas=replicas,
    )  # fmt: skip


@dataclass(frozen=True)
class TableSpec(KeepSpec):
    """How servers keep a table's rows. What is read goes through its filters, too."""

    functions: str = ""
    """Names, with a space between each two, of what contributions may ask for instead of the update."""
    first_values: str = "zeros"
    """What a row is before its first update (byteps_like/store/tables/first_values.py)."""

    @property
    @override
    def text(self) -> str:
        functions = f"\nfunctions {self.functions}" if self.functions else ""
        return f"{super().text}{functions}\nrows {self.first_values}"


@dataclass(frozen=True)
class TableShards:
    """Where the rows of a table are. Its shards are numbered by their first buckets."""

    declared: Declared

    @cached_property
    def firsts(self) -> tuple[int, ...]:
        """Of each shard its first bucket; the key of that one is the key of all rows there."""
        found: dict[tuple[int, int], int] = {}
        for bucket, part in enumerate(self.declared.partitions):
            found.setdefault((part.server, part.shard), bucket)
        return tuple(found.values())

    @cached_property
    def owners(self) -> tuple[int, ...]:
        """Of each bucket, the number of its shard."""
        parts = self.declared.partitions
        numbers = {(parts[first].server, parts[first].shard): shard for shard, first in enumerate(self.firsts)}
        return tuple(numbers[part.server, part.shard] for part in parts)


class RowList(Protocol):
    """Ids of rows at one shard, ascending, as the worker that made it keeps them."""

    def __len__(self) -> int:
        """How many."""


class RowsAt(NamedTuple):
    """Some rows at one shard, and the address where they are, or go, in the order of their ids; or where that is what
    filters have made of them."""

    shard: int
    rows: RowList
    address: int
    nbytes: int
    """There."""


class KeptTable(Protocol):
    """A table that servers keep, open on this rank. Thread-safe. What is called here first is first for each shard: a
    read sees all that this rank has contributed before. Outcomes are by shard, as rows were given."""

    @property
    def declared(self) -> Declared:
        """Its name and its buckets."""

    @property
    def shards(self) -> TableShards:
        """Where they are."""

    def row_list(self, address: int, count: int) -> RowList:
        """Of so many ids at `address`, strictly ascending u64, all of one shard; copied. To be used as often as wanted:
        a server is told once what is in it, as long as it is used now and then."""

    def change(self, spec: TableSpec) -> KeepHandle:
        """See KeptTensor.change."""

    def push(self, rows: Sequence[RowsAt], note: Note, *, priority: int | None = None) -> KeepHandle:
        """Contributes rows. See KeptTensor.push. Each counts a clock of its shard, without any ids, too."""

    def tick(self, shards: Sequence[int], note: Note, *, priority: int | None = None) -> KeepHandle:
        """Contributes nothing at these shards. See KeptTensor.tick."""

    def pull(self, rows: Sequence[RowsAt], *, priority: int | None = None) -> KeepHandle:
        """Reads rows, once the policy lets this rank; zeros where there is none. Never blocks. One version of each
        shard."""

    def pull_filtered(self, rows: Sequence[RowsAt], *, priority: int | None = None) -> RangeHandle:
        """As `pull`, of a table with filters: to the handle, as servers have made it. Addresses mean nothing."""

    def pull_range(
        self, low: int, high: int, *, since: Sequence[int] = (), most: int = 0, priority: int | None = None
    ) -> RangeHandle:
        """Reads all rows with ids from `low` to before `high`, of all shards; with `since`, of each shard only those of
        versions beyond that; with `most`, of each shard no more than the first ones, so many. Never blocks."""

    def call(self, text: bytes) -> CallHandle:
        """Has all shards run a function on rows, of this table and perhaps of others beside it. See Keeps.call."""


@runtime_checkable
class KeepsTables(Protocol):
    """A worker whose servers can keep tables."""

    def keep_table(self, declared: Declared, spec: TableSpec) -> KeptTable:
        """Opens a table, on all ranks, whose buckets are the partitions of a declared `table_tensor`. Blocks until all
        shards have answered. Raises MismatchError and InvalidArgumentError as Keeps.keep."""
