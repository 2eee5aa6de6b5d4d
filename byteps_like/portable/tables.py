"""Tables whose rows servers keep, on a portable worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from byteps_like.portable.handle import PortableKeepHandle, PortableRangeHandle
from byteps_like.portable.keeping import StoresWorker, call_table, open_parts, start_ticks
from byteps_like.portable.pump import KeyCall
from byteps_like.portable.row_numbers import SentRows
from byteps_like.portable.store_flow import StoreFlow
from byteps_like.portable.store_lane import NOBODY, LaneSpec, Opened
from byteps_like.portable.table_lane import LaneFetch, LaneRows
from byteps_like.portable.transfer import memory_at
from byteps_like.wire.note import Note
from byteps_like.worker.api import Declared, Partition
from byteps_like.worker.keeping import CallHandle, KeepHandle, Outcome, RangeHandle, check_note
from byteps_like.worker.tables import RowList, RowsAt, TableShards, TableSpec


def open_table(worker: StoresWorker, shards: TableShards, spec: TableSpec) -> PortableKeepHandle:
    """Starts to open a table, or to change its policy; the handle is done when all shards have answered."""
    dtype = shards.declared.spec.dtype
    row = spec.width * dtype.itemsize

    def opens(part: Partition, opened: Opened) -> Callable[[StoreFlow], None]:
        lane = LaneSpec(part.key, part.shard, dtype, row, spec.width, NOBODY, spec.text)
        return lambda flow: flow.open_table(lane, opened)

    parts = [shards.declared.partitions[first] for first in shards.firsts]
    return open_parts(worker, shards.declared.spec.name, parts, opens)


class PortableKeptTable:
    """One that is open: see worker.tables.KeptTable."""

    def __init__(self, worker: StoresWorker, shards: TableShards) -> None:
        self._worker = worker
        self.shards = shards

    @property
    def declared(self) -> Declared:
        """See KeptTable."""
        return self.shards.declared

    def row_list(self, address: int, count: int) -> RowList:
        """See KeptTable."""
        return SentRows(bytes(memory_at(address, 8 * count)) if count else b"")

    def change(self, spec: TableSpec) -> KeepHandle:
        """See KeptTable."""
        return self._worker.change(self.declared, spec, lambda: open_table(self._worker, self.shards, spec))

    def push(self, rows: Sequence[RowsAt], note: Note, *, priority: int | None = None) -> KeepHandle:
        """See KeptTable. Raises InvalidArgumentError for a note that can't travel."""
        check_note(self.declared, note)
        handle = self._handle(len(rows))
        urgency = self._priority(priority)

        def push(flow: StoreFlow, *, key: int, number: int) -> None:
            own = LaneRows(self._memory(rows[number]), note, self._settles(handle, number), urgency,
                           rows=self._sent(rows[number]))  # fmt: skip
            flow.push(key, own)

        return self._start(handle, [one.shard for one in rows], push)

    def tick(self, shards: Sequence[int], note: Note, *, priority: int | None = None) -> KeepHandle:
        """See KeptTable. Raises InvalidArgumentError for a note that can't travel."""
        check_note(self.declared, note)
        parts = [self.declared.partitions[self.shards.firsts[shard]] for shard in shards]
        return start_ticks(self._worker, self.declared.spec.name, parts, note, self._priority(priority))

    def pull(self, rows: Sequence[RowsAt], *, priority: int | None = None) -> KeepHandle:
        """See KeptTable."""
        handle = self._handle(len(rows))
        urgency = self._priority(priority)

        def fetch(flow: StoreFlow, *, key: int, number: int) -> None:
            sent, out = self._sent(rows[number]), self._memory(rows[number])
            flow.fetch(key, LaneFetch(sent, self._settles(handle, number), out, priority=urgency))

        return self._start(handle, [one.shard for one in rows], fetch)

    def pull_filtered(self, rows: Sequence[RowsAt], *, priority: int | None = None) -> RangeHandle:
        """See KeptTable."""
        urgency = self._priority(priority)
        fetches = [LaneFetch(self._sent(one), lambda _: None, filtered=True, priority=urgency) for one in rows]
        return self._fetch_all(fetches, [one.shard for one in rows])

    def pull_range(
        self, low: int, high: int, *, since: Sequence[int] = (), most: int = 0, priority: int | None = None
    ) -> RangeHandle:
        """See KeptTable."""
        urgency, shards = self._priority(priority), range(len(self.shards.firsts))
        fetches = [
            LaneFetch(None, lambda _: None, range=(low, high), since=known, most=most, priority=urgency)
            for known in since or [0] * len(shards)
        ]
        return self._fetch_all(fetches, shards)

    def call(self, text: bytes) -> CallHandle:
        """See KeptTable."""
        return call_table(self._worker, self.shards, text)

    def _fetch_all(self, fetches: Sequence[LaneFetch], shards: Sequence[int]) -> RangeHandle:
        """Of each shard what only its server knows the length of."""
        handle = PortableRangeHandle(self.declared.spec.name, fetches, self._worker)

        def fetch(flow: StoreFlow, *, key: int, number: int) -> None:
            fetches[number].settled = self._settles(handle, number)
            flow.fetch(key, fetches[number])

        self._start(handle, shards, fetch)
        return handle

    def _handle(self, count: int) -> PortableKeepHandle:
        return PortableKeepHandle(self.declared.spec.name, count, self._worker)

    def _start(
        self, handle: PortableKeepHandle, shards: Sequence[int], call: Callable[..., None]
    ) -> PortableKeepHandle:
        parts = [self.declared.partitions[self.shards.firsts[shard]] for shard in shards]
        calls: list[tuple[int, KeyCall]] = [
            (part.server, partial(call, key=part.key, number=number)) for number, part in enumerate(parts)
        ]
        self._worker.use_stores(handle, calls)
        return handle

    def _settles(self, handle: PortableKeepHandle, number: int) -> Callable[[Outcome], None]:
        def settled(outcome: Outcome) -> None:
            handle.settle(number, outcome)
            if handle.done():
                self._worker.ended(handle)

        return settled

    def _sent(self, one: RowsAt) -> SentRows:
        assert isinstance(one.rows, SentRows)
        return one.rows

    def _memory(self, one: RowsAt) -> memoryview:
        return memory_at(one.address, one.nbytes) if one.nbytes else memoryview(b"")

    def _priority(self, given: int | None) -> int:
        return self.declared.spec.priority if given is None else given
