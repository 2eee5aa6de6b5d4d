"""Operations of a table, and those that begin only when others are done, without keeping their caller."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from typing_extensions import override

from byteps_like.errors import DeadlineError
from byteps_like.store.future import Future, Landed, PartsFlight
from byteps_like.worker.keeping import Outcome


class RowsFuture(Future):
    """A push or a pull of rows in flight. What has been pulled is its `value`, and with `pull_range` its `keys`."""

    def __init__(
        self,
        flights: Sequence[PartsFlight],
        landed: Landed,
        weight: float = 1.0,
        rank: int = 0,
        *,
        idle: Sequence[PartsFlight] = (),
        out: Callable[[], Any] | None = None,
    ) -> None:
        """`idle`: to shards that get no rows; it is done when they are, too, and says nothing of them where there are
        others. `out`: (keys, value) of what has been read, once it is there."""
        super().__init__([*flights, *idle], landed, weight, rank)
        self._told = flights or idle
        self._out = out

    @override
    def _settled(self) -> list[tuple[PartsFlight, Outcome]]:
        return [(flight, outcome) for flight, outcome in super()._settled() if flight in self._told]

    def _read(self) -> tuple[Any, Any]:
        self.wait()
        found: tuple[Any, Any] = (None, None) if self._out is None else self._out()
        return found

    @property
    def value(self) -> Any:
        """The rows that were read, of shape [n, width], in the order of their keys; None of a push. Blocks."""
        return self._read()[1]

    @property
    def keys(self) -> Any:
        """Ids of the rows that were read, ascending u64; None of a push. Blocks."""
        return self._read()[0]


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
    def _read(self) -> tuple[Any, Any]:
        return self._started()._read()

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
