"""Calls without a name for which there is no lane yet (see naming): they are begun in order, on a thread of their own.

So a rank with many of them in flight still comes to its next call, which others may make first and wait in.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import Context, copy_context
from typing import Any, Protocol

from byteps_like.errors import BytePSLikeError
from byteps_like.torch.job.naming import NameTable
from byteps_like.worker.api import Handle


class Begun(Protocol):
    """What is in flight once a call has been begun (handles.Operation)."""

    @property
    def handle(self) -> Handle:
        """Says when it has landed."""

    def wait(self) -> Any:
        """Blocks until then; returns the caller's result."""


Begin = Callable[[], Begun]


class Later:
    """A call that another thread begins. A Handle, whose waiting is left to `result`."""

    def __init__(self, begin: Begin, names: NameTable) -> None:
        self._begin, self._names = begin, names
        self._context: Context = copy_context()
        self._begun: Future[Begun] = Future()

    def begin(self) -> None:
        """On the other thread, once."""
        try:
            self._begun.set_result(self._context.run(self._begin))
        except Exception as error:  # noqa: BLE001 - raised by result()
            self._begun.set_exception(error)

    def done(self) -> bool:
        """Whether it is over, or could not be begun; never blocks."""
        return self._begun.done() and (self._begun.exception() is not None or self._begun.result().handle.done())

    def wait(self, timeout: float | None = None) -> None:
        """Left to `result`."""

    def give_up(self, error: BytePSLikeError) -> None:
        """Left to what has been begun, which has a claim of its own."""

    def result(self) -> Any:
        """Blocks until it is over; the caller's result. Raises what beginning it, or the operation, failed with."""
        with self._names.rests():
            begun = self._begun.result()
        return begun.wait()


class Backlog:
    """Those of one runtime, by process set. Thread-safe."""

    def __init__(self, names: NameTable) -> None:
        self._names = names
        self._changed = threading.Condition()
        self._waiting: dict[str, deque[Later]] = {}

    def put(self, prefix: str, begin: Begin) -> Later | None:
        """Has `begin` called when there is a lane for it among `prefix`; None if there is one now: call it yourself."""
        with self._changed:
            waiting = self._waiting.get(prefix)
            if waiting is None:
                if self._names.has_lane(prefix):
                    return None
                waiting = self._waiting[prefix] = deque()
                name = "byteps_like-backlog"
                threading.Thread(target=self._begin_all, args=(prefix, waiting), name=name, daemon=True).start()
            later = Later(begin, self._names)
            waiting.append(later)
            return later

    def finish(self, prefix: str | None = None) -> None:
        """Blocks until all are begun: those among `prefix`, or among any ranks."""
        with self._names.rests(), self._changed:
            self._changed.wait_for(lambda: not self._waiting if prefix is None else prefix not in self._waiting)

    def _begin_all(self, prefix: str, waiting: deque[Later]) -> None:
        while True:
            with self._changed:
                if not waiting:
                    del self._waiting[prefix]
                    self._changed.notify_all()
                    return
                first = waiting[0]
            first.begin()
            with self._changed:
                waiting.popleft()  # only now: what comes meanwhile has to stay behind it
