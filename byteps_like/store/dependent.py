"""Operations of a table, and those that begin only when others are done, without keeping their caller."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from typing_extensions import override

from byteps_like.errors import DeadlineError
from byteps_like.store.future import Future, Landed, PartsFlight
from byteps_like.worker.keeping import Outcome


class FoundRows(NamedTuple):
    """What has been read."""

    keys: Any
    value: Any
    end: int = 0
    """Of a range: see RowsFuture."""


class RowsFuture(Future):
    """A push or a pull of rows in flight. What has been pulled is its `value`, with their `keys`."""

    def __init__(
        self,
        flights: Sequence[PartsFlight],
        landed: Landed,
        weight: float = 1.0,
        rank: int = 0,
        *,
        idle: Sequence[PartsFlight] = (),
        out: Callable[[], FoundRows] | None = None,
    ) -> None:
        """`idle`: to shards that get no rows; it is done when they are, too, and says nothing of them where there are
        others. `out`: what has been read, once it is there."""
        super().__init__([*flights, *idle], landed, weight, rank)
        self._told = flights or idle
        self._out = out
        self._found = FoundRows(None, None)

    @override
    def _settled(self) -> list[tuple[PartsFlight, Outcome]]:
        return [(flight, outcome) for flight, outcome in super()._settled() if flight in self._told]

    def _read(self) -> FoundRows:
        self.wait()
        if self._out is not None:
            self._found, self._out = self._out(), None
        return self._found

    @property
    def value(self) -> Any:
        """The rows that were read, of shape [n, width], in the order of their keys; None of a push. Blocks."""
        return self._read().value

    @property
    def keys(self) -> Any:
        """Ids of the rows that were read, ascending u64; None of a push. Blocks."""
        return self._read().keys

    @property
    def versions(self) -> dict[int, int]:
        """Of each shard that was asked, that which was read, or of which the contribution is part. Blocks."""
        found: dict[int, int] = {}
        self.wait()
        for flight in self._told:
            outcomes = flight.handle.outcomes()
            found |= {part: outcome.version for part, outcome in zip(flight.parts, outcomes, strict=True)}
        return found

    @property
    def end(self) -> int:
        """Of a range: the key from which on there may be more rows in it, because `most` was given; where there are
        none, its end. Blocks."""
        return self._read().end


class Dependent(RowsFuture):
    """One that begins later. What it says blocks until it has begun, too."""

    def __init__(self, begin: Callable[[], RowsFuture], after: Sequence[Future], weight: float) -> None:
        super().__init__((), lambda _: None, weight)
        self._begin, self._after = begin, after
        self._own: RowsFuture | None = None
        self._error: Exception | None = None
        self._begun = threading.Event()

    def run(self) -> None:
        """Begins it, when the others are done; it fails as one of them does. Blocks."""
        try:
            for other in self._after:
                other.wait()
            self._own = self._begin()
        except Exception as error:  # noqa: BLE001 - whatever it is, who waits for this is to hear of it
            self._error = error
        self._begun.set()

    @override
    def done(self) -> bool:
        return self._begun.is_set() and (self._own is None or self._own.done())

    @override
    def wait(self, timeout: float | None = None) -> None:
        end = None if timeout is None else time.monotonic() + timeout
        if not self._begun.wait(timeout):
            raise DeadlineError(f"an operation has not begun after {timeout:g} s: it waits for others that it is after")
        self._started().wait(None if end is None else max(end - time.monotonic(), 0.0))

    def _started(self) -> RowsFuture:
        self._begun.wait()  # no longer than the others take, which have deadlines
        if self._error is not None:
            raise self._error
        assert self._own is not None
        return self._own

    @override
    def _read(self) -> FoundRows:
        return self._started()._read()

    @property
    @override
    def versions(self) -> dict[int, int]:
        return self._started().versions

    @property
    @override
    def time(self) -> float:
        """Seconds from when it began."""
        return self._started().time

    @property
    @override
    def version(self) -> int:
        return self._started().version

    @property
    @override
    def age(self) -> int:
        return self._started().age

    @property
    @override
    def counted(self) -> bool:
        return self._started().counted

    @property
    @override
    def contributors(self) -> tuple[int, ...]:
        return self._started().contributors


class InOrder:
    """Begins operations in the order of the calls: what is called after one that waits waits, too. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Dependent] = deque()

    def begin(self, operation: Callable[[], RowsFuture], after: Sequence[Future], weight: float = 1.0) -> RowsFuture:
        """At once, unless it has to wait: then on a thread of its own. Never blocks."""
        with self._lock:
            if not self._waiting and not after:
                return operation()
            later = Dependent(operation, tuple(after), weight)
            self._waiting.append(later)
            if len(self._waiting) == 1:
                threading.Thread(target=self._run, name="byteps_like-after", daemon=True).start()
        return later

    def _run(self) -> None:
        while True:
            self._waiting[0].run()
            with self._lock:
                self._waiting.popleft()
                if not self._waiting:
                    return
