"""What a store's calls return: an operation in flight, and what has become of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from typing_extensions import override

from byteps_like.store.memory.holding import held
from byteps_like.wire.note import Applied
from byteps_like.worker.keeping import KeepHandle, Outcome


@dataclass(frozen=True)
class PartsFlight:
    """Some partitions, or shards, of one operation."""

    handle: KeepHandle
    parts: Sequence[int]
    base: int | None = None
    """The version that they were computed on; None: they are read."""


Landed = Callable[[Sequence[tuple[PartsFlight, Sequence[Outcome]]]], None]


class Future:
    """A push or a pull in flight. Thread-safe.

    What is pushed must stay as it is, and what is read must be left alone, until it is done. All but `done` and
    `weight` block until then, and raise the error that the operation has ended with.
    """

    def __init__(self, flights: Sequence[PartsFlight], landed: Landed, weight: float = 1.0, rank: int = 0) -> None:
        """`landed` is called once, when all is done, on a thread that waits or asks. `rank`: whose it is."""
        self.weight = weight
        """What the contribution counts; 1 of a pull."""
        self._flights, self._landed, self._rank = flights, landed, rank
        self._outcomes: list[tuple[PartsFlight, Outcome]] = []
        self._began, self._took = time.monotonic(), 0.0
        self._ended = False
        self._lock = threading.Lock()

    def done(self) -> bool:
        """Whether it has ended, well or not. Never blocks."""
        return self._ended or all(flight.handle.done() for flight in self._flights)

    def wait(self, timeout: float | None = None) -> None:
        """Blocks until it is done: a push, when servers have said what became of it; a pull, when `out` has the value.

        A contribution that is late, or not finite, raises nothing: see `counted`. Raises DeadlineError after `timeout`
        seconds (None: the job's own deadline), and the job's errors.
        """
        end = None if timeout is None else time.monotonic() + timeout
        for flight in self._flights:
            flight.handle.wait(None if end is None else max(end - time.monotonic(), 0.0))
        with self._lock:
            if not self._ended:
                self._settle()
                self._ended = True

    def followed_by(self, other: Future) -> Future:
        """Both as one: done when both are. What it says of the contribution is this one's, the version the other's."""
        return Both(self, other)

    def _settle(self) -> None:
        self._took = time.monotonic() - self._began
        found = [(flight, flight.handle.outcomes()) for flight in self._flights]
        for flight in self._flights:
            held.let_go(flight.handle)
        self._outcomes = [(flight, outcome) for flight, outcomes in found for outcome in outcomes]
        self._landed(found)

    def _settled(self) -> list[tuple[PartsFlight, Outcome]]:
        self.wait()
        return self._outcomes

    @property
    def time(self) -> float:
        """Seconds from the call until somebody saw that it was done."""
        self.wait()
        return self._took

    @property
    def version(self) -> int:
        """That the contribution is part of, or that was read: the least of its partitions'."""
        return min((outcome.version for _, outcome in self._settled()), default=0)

    @property
    def age(self) -> int:
        """How many versions were made between the one that the contribution was computed on and the one that it is part
        of: the most of its partitions'. 0 of what was read."""
        return max((_age(flight.base, outcome) for flight, outcome in self._settled()), default=0)

    @property
    def counted(self) -> bool:
        """Whether all of it was applied: no partition was late, or not finite. True of what was read."""
        return all(outcome.applied is Applied.COUNTED for _, outcome in self._settled())

    @property
    def contributors(self) -> tuple[int, ...]:
        """The ranks whose contributions are in the version that this one is part of, ascending; where partitions
        differ, those that are in all of them. Nobody's, where this one was late, and of what was read."""
        found = [_contributors(flight.base, outcome, self._rank) for flight, outcome in self._settled()]
        return tuple(sorted(frozenset.intersection(*found))) if found else ()


class Both(Future):
    """A push, and the pull after it."""

    def __init__(self, push: Future, pull: Future) -> None:
        super().__init__((), lambda _: None, push.weight)
        self._push, self._pull = push, pull

    @override
    def done(self) -> bool:
        return self._push.done() and self._pull.done()

    @override
    def wait(self, timeout: float | None = None) -> None:
        end = None if timeout is None else time.monotonic() + timeout
        self._push.wait(timeout)
        self._pull.wait(None if end is None else max(end - time.monotonic(), 0.0))
        super().wait(0)

    @property
    @override
    def version(self) -> int:
        """That was read."""
        return self._pull.version

    @property
    @override
    def age(self) -> int:
        return self._push.age

    @property
    @override
    def counted(self) -> bool:
        return self._push.counted

    @property
    @override
    def contributors(self) -> tuple[int, ...]:
        return self._push.contributors


def _contributors(base: int | None, outcome: Outcome, rank: int) -> frozenset[int]:
    alone = base is not None and outcome.applied is Applied.COUNTED and not outcome.contributors
    return frozenset((rank,) if alone else outcome.contributors)


def _age(base: int | None, outcome: Outcome) -> int:
    if base is None:
        return 0
    before = outcome.version - (outcome.applied is not Applied.LATE)  # what is late is part of none
    return before - base
