"""Rounds that begin when another has landed: a thread begins them, so that no rank waits for where others are."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from functools import partial

from byteps_like.errors import BytePSLikeError, DeadlineError, timed_out
from byteps_like.worker.api import Handle

Call = Callable[[], None]
"""Waits for one round, and begins the next. Must not raise."""


class Promised:
    """The Handle of an operation that another thread will begin. Thread-safe."""

    def __init__(self) -> None:
        self._settled = threading.Event()
        self._handle: Handle | None = None
        self._error: Exception | None = None

    def keep(self, handle: Handle, error: Exception | None = None) -> None:
        """It has begun. `error`: what it is to fail with when it is over, since it was begun for other ranks only."""
        self._handle, self._error = handle, error
        self._settled.set()

    def fail(self, error: Exception) -> None:
        """It won't begin, because of `error`. Nothing if it has."""
        if not self._settled.is_set():
            self._error = error
            self._settled.set()

    def done(self) -> bool:
        """See Handle."""
        return self._settled.is_set() and (self._handle is None or self._handle.done())

    def wait(self, timeout: float | None = None) -> None:
        """See Handle. `timeout` is for its beginning, and then for its end."""
        if not self._settled.wait(timeout):
            raise DeadlineError(f"wait() for an operation that has not begun {timed_out(timeout or 0.0)}")
        if self._handle is not None:
            self._handle.wait(timeout)
        if self._error is not None:
            raise self._error

    def give_up(self, error: BytePSLikeError) -> None:
        """See Handle."""
        if self._handle is not None:
            self._handle.give_up(error)
        self.fail(error)


class Relay:
    """A thread, from `begin` or the first call on, that makes the calls that it is given, one after the other.

    It may wait for what all ranks have sent, but never for what they send by a later call of theirs. It ends when
    nobody holds the relay and all calls are made. Thread-safe.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._runs = False
        weakref.finalize(self, self._calls.put, None).atexit = False

    def begin(self) -> None:
        """Starts the thread, so that `put` can't fail for want of one. Idempotent."""
        with self._lock:
            if not self._runs:
                name = "byteps_like-relay"
                threading.Thread(target=partial(_run, self._calls), name=name, daemon=True).start()
                self._runs = True

    def put(self, call: Call) -> None:
        """`call` is made after those before."""
        self.begin()
        self._calls.put(call)


def _run(calls: queue.SimpleQueue[Call | None]) -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # or it would live, with its memory, until the next one comes
