"""Whoever waits for a call's end hears of it, also when the core is closed just then."""

from __future__ import annotations

import threading
from queue import Empty, SimpleQueue

from byteps_like.collectives.operation import Notifier


class Core:
    """Says which calls have ended; nothing more once it is closed."""

    def __init__(self) -> None:
        self.ended: SimpleQueue[int] = SimpleQueue()
        self.closed = threading.Event()

    def next_completed(self, seconds: float) -> int | None:
        """At once when it is closed."""
        try:
            return self.ended.get(timeout=0 if self.closed.is_set() else min(seconds, 0.05))
        except Empty:
            return None


class Call:
    """Ends when it is asked to tell of its end, or later."""

    def __init__(self) -> None:
        self.token: int | None = None

    def notify(self, core: Core, token: int) -> None:
        self.token = token


def test_a_call_that_ends_is_told_of_once() -> None:
    core, call, told = Core(), Call(), threading.Semaphore(0)
    notifier = Notifier(core)
    notifier.watch(call, told.release)
    assert not told.acquire(timeout=0.1)
    assert call.token is not None
    core.ended.put(call.token)
    assert told.acquire(timeout=10)
    core.closed.set()
    notifier.close()
    assert not told.acquire(timeout=0.1)


def test_what_is_asked_for_after_the_end_is_told_at_once() -> None:
    core, told = Core(), threading.Event()
    core.closed.set()
    notifier = Notifier(core)
    notifier.close()
    notifier.watch(Call(), told.set)
    assert told.is_set()


def test_the_end_overtakes_whoever_asks() -> None:
    """The core is closed between the two halves of `watch`, and tells of nothing that it is asked for later."""
    core, told = Core(), threading.Event()
    notifier = Notifier(core)

    class Late(Call):
        def notify(self, core: Core, token: int) -> None:
            core.closed.set()
            notifier.close()

    notifier.watch(Late(), told.set)
    assert told.wait(10)
