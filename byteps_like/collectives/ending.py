"""Ending: how an operation that Python carries out ends, and who hears of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

E = TypeVar("E", bound=Exception)


class Ending(Generic[E]):
    """Comes once: well, or with an error. Thread-safe."""

    def __init__(self) -> None:
        self._came = threading.Event()
        self._lock = threading.Lock()
        self._error: E | None = None
        self._callbacks: list[Callable[[], None]] = []

    def come(self, error: E | None = None, before: Callable[[], None] | None = None) -> bool:
        """Ends it, calls `before` first, and all callbacks afterwards, on this thread. False: it has ended before."""
        with self._lock:
            if self._came.is_set():
                return False
            if before is not None:
                before()
            self._error = error
            self._came.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()
        return True

    def has_come(self) -> bool:
        """Whether it has, well or not."""
        return self._came.is_set()

    def wait(self, timeout: float | None) -> bool:
        """Blocks until then, for `timeout` seconds at most. False: it has not come. Raises its error."""
        if not self._came.wait(timeout):
            return False
        if self._error is not None:
            raise self._error
        return True

    def error(self) -> E | None:
        """Its error; None, too, before it has come."""
        return self._error

    def on_come(self, callback: Callable[[], None]) -> None:
        """Calls back once it has come, on the thread that ends it; at once if it has."""
        with self._lock:
            if not self._came.is_set():
                self._callbacks.append(callback)
                return
        callback()
