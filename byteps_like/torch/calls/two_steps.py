"""Operations of two steps: what the second is depends on what the first has brought."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from byteps_like.collectives.together import Together, Waitable
from byteps_like.errors import BytePSLikeError


class InFlight(Waitable, Protocol):
    """Something in flight that says when it has ended (collectives.api.CollectiveOperation, Staged, All)."""

    def on_done(self, callback: Callable[[], None]) -> None:
        """Calls back once when it has ended; at once if it has."""


class Staged:
    """The handle of `first` and of what `then` starts when `first` has ended well. Thread-safe.

    `then` runs on whichever thread comes first: one that waits, or that of callbacks. So the second step begins by
    itself, and a waiting thread drives it without being woken twice.
    """

    def __init__(self, first: InFlight, then: Callable[[], InFlight]) -> None:
        self._first, self._then = first, then
        self._second: InFlight | None = None
        self._error: Exception | None = None
        self._callbacks: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        first.on_done(self._advance)

    def _advance(self) -> None:
        with self._lock:
            if self._second is not None or self._error is not None:
                return
            try:
                self._first.wait()
                self._second = self._then()
            except Exception as error:  # noqa: BLE001 - raised by wait()
                self._error = error
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            self._when_over(callback)

    def _when_over(self, callback: Callable[[], None]) -> None:
        if self._second is not None:
            self._second.on_done(callback)
        else:
            callback()

    def done(self) -> bool:
        """Whether both have ended, or the first has failed."""
        return self._error is not None or (self._second is not None and self._second.done())

    def wait(self, timeout: float | None = None) -> None:
        """Blocks until then; raises what failed. `timeout` is for each of the two."""
        if self._second is None and self._error is None:
            self._first.wait(timeout)
            self._advance()
        if self._error is not None:
            raise self._error
        assert self._second is not None
        self._second.wait(timeout)

    def give_up(self, error: BytePSLikeError) -> None:
        """See collectives.api.CollectiveOperation."""
        (self._first if self._second is None else self._second).give_up(error)

    def on_done(self, callback: Callable[[], None]) -> None:
        """Calls back once both have ended."""
        with self._lock:
            if self._second is None and self._error is None:
                self._callbacks.append(callback)
                return
        self._when_over(callback)


class All(Together):
    """Several steps as one."""

    def __init__(self, steps: Sequence[InFlight]) -> None:
        super().__init__(steps)
        self._left = len(steps)
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        for step in steps:
            step.on_done(self._one)

    def _one(self) -> None:
        with self._lock:
            self._left -= 1
            callbacks = self._callbacks if self._left == 0 else []
        for callback in callbacks:
            callback()

    def on_done(self, callback: Callable[[], None]) -> None:
        """Calls back once all have ended."""
        with self._lock:
            if self._left > 0:
                self._callbacks.append(callback)
                return
        callback()
