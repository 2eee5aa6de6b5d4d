"""Tables whose rows servers keep, over the C++ engine."""

from __future__ import annotations

from collections.abc import Sequence

from byteps_like import _core
from byteps_like.wire.note import Note
from byteps_like.worker.api import Declared
from byteps_like.worker.engine.kept import EngineKeepHandle, EngineRangeHandle, KeepsByEngine, KeptTensors, Start
from byteps_like.worker.keeping import CallHandle, KeepHandle, RangeHandle, check_note
from byteps_like.worker.tables import RowList, RowsAt, TableShards, TableSpec


def opening_of(shards: TableShards, spec: TableSpec) -> Start:
    """Opens a table, or asks for its policy."""
    firsts, text, width = list(shards.firsts), spec.text, spec.width
    return lambda engine, tensor: engine.keep_table(tensor, firsts, text, width)


class EngineKeptTable:
    """One that is open: see worker.tables.KeptTable."""

    def __init__(self, worker: KeepsByEngine, shards: TableShards, among: KeptTensors) -> None:
        self._worker, self._among = worker, among
        self.shards = shards

    @property
    def declared(self) -> Declared:
        """See KeptTable."""
        return self.shards.declared

    def row_list(self, address: int, count: int) -> RowList:
        """See KeptTable."""
        made: RowList = _core.RowList(address, count)
        return made

    def change(self, spec: TableSpec) -> KeepHandle:
        """See KeptTable."""
        return self._among.change(self.declared, spec, opening_of(self.shards, spec))

    def push(self, rows: Sequence[RowsAt], note: Note, *, priority: int | None = None) -> KeepHandle:
        """See KeptTable. Raises InvalidArgumentError for a note that can't travel."""
        placed, urgency, written = self._placed(rows), self._priority(priority), check_note(self.declared, note)
        operation = self._worker.begin(
            self.declared, lambda engine, tensor: engine.contribute_rows(tensor, placed, urgency, written)
        )
        return EngineKeepHandle(self._worker, operation, self.declared, contributes=True)

    def tick(self, shards: Sequence[int], note: Note, *, priority: int | None = None) -> KeepHandle:
        """See KeptTable. Raises InvalidArgumentError for a note that can't travel."""
        urgency, written = self._priority(priority), check_note(self.declared, note)
        firsts = [self.shards.firsts[shard] for shard in shards]
        operation = self._worker.begin(
            self.declared, lambda engine, tensor: engine.tick(tensor, firsts, urgency, written)
        )
        return EngineKeepHandle(self._worker, operation, self.declared, contributes=True)

    def pull(self, rows: Sequence[RowsAt], *, priority: int | None = None) -> KeepHandle:
        """See KeptTable."""
        placed, urgency = self._placed(rows), self._priority(priority)
        operation = self._worker.begin(self.declared, lambda engine, tensor: engine.fetch_rows(tensor, placed, urgency))
        return EngineKeepHandle(self._worker, operation, self.declared)

    def pull_filtered(self, rows: Sequence[RowsAt], *, priority: int | None = None) -> RangeHandle:
        """See KeptTable."""
        placed, urgency = self._placed(rows), self._priority(priority)
        operation = self._worker.begin(
            self.declared, lambda engine, tensor: engine.fetch_filtered(tensor, placed, urgency)
        )
        return EngineRangeHandle(self._worker, operation, self.declared)

    def pull_range(
        self, low: int, high: int, *, since: Sequence[int] = (), most: int = 0, priority: int | None = None
    ) -> RangeHandle:
        """See KeptTable."""
        firsts, urgency = list(self.shards.firsts), self._priority(priority)
        known = list(since) or [0] * len(firsts)
        operation = self._worker.begin(
            self.declared, lambda engine, tensor: engine.fetch_range(tensor, firsts, urgency, low, high, known, most)
        )
        return EngineRangeHandle(self._worker, operation, self.declared)

    def call(self, text: bytes) -> CallHandle:
        """See KeptTable."""
        firsts = list(self.shards.firsts)
        operation = self._worker.begin(self.declared, lambda engine, tensor: engine.call_table(tensor, firsts, text))
        return EngineKeepHandle(self._worker, operation, self.declared)

    def _placed(self, rows: Sequence[RowsAt]) -> list[tuple[int, RowList, int, int]]:
        return [(self.shards.firsts[one.shard], one.rows, one.address, one.nbytes) for one in rows]

    def _priority(self, given: int | None) -> int:
        return self.declared.spec.priority if given is None else given
