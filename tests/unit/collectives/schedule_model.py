"""Runs all ranks' programs on bytes in one thread, by the executor's contract: the model that it is held against."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from byteps_like.collectives.planning.compile import Tables
from byteps_like.collectives.schedules.dependencies import build
from byteps_like.collectives.schedules.schedule import Kind, RankSchedule, Span, StepKind

Arrays = list[np.ndarray]


class Model:
    """Buffers are arrays of one dtype; a reduction is a sum."""

    def __init__(self, schedules: Sequence[RankSchedule], tables: Sequence[Tables], inputs: Arrays) -> None:
        self.schedules, self.tables, self.dtype = schedules, tables, inputs[0].dtype
        self.buffers = []
        for one, table, source in zip(schedules, tables, inputs, strict=True):
            assert sum(length for _, length in table.input) == source.nbytes, one
            empty = [np.full(self._room(part), 99, self.dtype) for part in (table.output, table.scratch)]
            self.buffers.append((source, *empty))

    def _room(self, table: Sequence[tuple[int, int]]) -> int:
        return max((offset + length for offset, length in table), default=0) // self.dtype.itemsize

    def run(self, seed: int = 0) -> Arrays:
        """Steps run in a random order of those that their dependencies allow. Returns the outputs."""
        graph = build(self.schedules)
        left = {number: set(before) for number, before in enumerate(graph.before)}
        sent: dict[int, np.ndarray] = {}
        choose = random.Random(seed)
        while left:
            number = choose.choice([number for number, before in left.items() if not before & left.keys()])
            del left[number]
            event = graph.events[number]
            source, target = (self._view(event.rank, span) for span in (event.step.source, event.step.target))
            came = sent.get(graph.sender.get(number, -1))
            if event.step.kind is StepKind.SEND:
                sent[number] = source.copy()
            elif event.step.kind is StepKind.RECEIVE_REDUCE:
                target[:] = source + came
            else:
                target[:] = source if came is None else came
        return [buffers[1] for buffers in self.buffers]

    def _view(self, rank: int, span: Span | None) -> np.ndarray:
        if span is None:
            return np.empty(0, self.dtype)
        places = self.tables[rank][span.buffer][span.first : span.first + span.count]
        first, last = places[0], places[-1]
        assert sum(length for _, length in places) == last[0] + last[1] - first[0], "a run with a hole"
        item = self.dtype.itemsize
        return self.buffers[rank][span.buffer][first[0] // item : (last[0] + last[1]) // item]


def _parts(counts: list[int], flat: np.ndarray) -> Arrays:
    return np.split(flat, np.cumsum(counts)[:-1])


def expected(kind: Kind, counts: list[int], inputs: Arrays, root: int) -> Arrays:
    """The outputs of all ranks, by NumPy."""
    n = len(inputs)
    nothing = np.empty(0, inputs[0].dtype)
    match kind:
        case Kind.ALL_REDUCE:
            return [sum(inputs)] * n
        case Kind.REDUCE:
            return [sum(inputs) if rank == root else nothing for rank in range(n)]
        case Kind.BROADCAST:
            return [inputs[root]] * n
        case Kind.REDUCE_SCATTER:
            return _parts(counts[:n], sum(inputs))
        case Kind.ALL_GATHER:
            return [np.concatenate(inputs)] * n
        case Kind.SCATTER:
            return _parts(counts[:n], inputs[root])
        case Kind.GATHER:
            return [np.concatenate(inputs) if rank == root else nothing for rank in range(n)]
        case _:
            sent = [_parts(counts[rank * n : rank * n + n], one) for rank, one in enumerate(inputs)]
            return [np.concatenate([sent[source][rank] for source in range(n)]) for rank in range(n)]
