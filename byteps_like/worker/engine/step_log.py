"""What the results of each step lack, since ranks have died whose contributions they were to have."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from byteps_like.worker.api import Partition, TensorSpec

KEPT = 64
"""Steps that are remembered."""

Absence = tuple[int, int, int, int]
"""Of a rank that is gone, in a partition's result: the rank, the key, how many bytes of its contribution, from its
beginning, are in it, and how many these had been; 0 if it had not begun."""


@dataclass(frozen=True)
class Lack:
    """A rank that has died is not in some bytes of a tensor's result."""

    rank: int
    tensor: str
    """Its name, as it travels."""
    nbytes: int
    """Of the whole tensor."""
    ranges: tuple[range, ...]
    """Of bytes, ascending: in all others it is."""

    @property
    def counted(self) -> int:
        """Bytes in which it is."""
        return self.nbytes - sum(map(len, self.ranges))

    def __str__(self) -> str:
        return f"rank {self.rank} is in {self.counted} of {self.nbytes} bytes of {self.tensor!r}"


class StepLog:
    """The steps of one worker in one world, the view of number `world`. Thread-safe."""

    def __init__(self, world: int = 0) -> None:
        self.world = world
        self.now = 0
        """Number of the step under way, to which belongs what begins now."""
        self._lock = threading.Lock()
        self._missing: dict[int, dict[tuple[int, str, int], set[range]]] = {}

    def end_step(self) -> None:
        """The next one begins."""
        self.now += 1

    def note(self, step: int, tensor: TensorSpec, absences: Iterable[tuple[Partition, Absence]]) -> None:
        """A result of `tensor` that was begun in `step` lacks these. Saying it again does no harm."""
        with self._lock:
            missing = self._missing.setdefault(step, {})
            for part, (rank, _, brought, total) in absences:
                counted = part.nbytes * brought // total if total else 0  # payloads of codecs are of other sizes
                of_rank = missing.setdefault((rank, tensor.name, tensor.nbytes), set())
                of_rank.add(range(part.offset + counted, part.offset + part.nbytes))
            for old in [known for known in self._missing if known <= self.now - KEPT]:
                del self._missing[old]

    def lacks(self, step: int) -> tuple[Lack, ...]:
        """Those of a step. Of a tensor that was reduced several times in it: what any of the results lacks."""
        with self._lock:
            found = [Lack(*what, _joined(ranges)) for what, ranges in self._missing.get(step, {}).items()]
        return tuple(sorted(found, key=lambda lack: (lack.rank, lack.tensor)))


@runtime_checkable
class LogsSteps(Protocol):
    """A worker whose sums are finished without ranks that die, and that knows without whom."""

    steps: StepLog


def _joined(ranges: Iterable[range]) -> tuple[range, ...]:
    """In order, and those that touch as one."""
    found: list[range] = []
    for one in sorted(ranges, key=lambda one: one.start):
        if found and one.start <= found[-1].stop:
            found[-1] = range(found[-1].start, max(found[-1].stop, one.stop))
        else:
            found.append(one)
    return tuple(found)
