"""Threads in virtual time: one runs at a time, and time passes only while all sleep."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable
from itertools import count


class VirtualThreads:
    """Blocking code of several actors, interleaved wherever they sleep."""

    def __init__(self) -> None:
        self.now = 0.0
        self._later: list[tuple[float, int, Callable[[], object], bool]] = []
        """When, a number, what, and whether a thread goes on with it."""
        self._numbers = count()
        self._over = threading.Event()
        self._failures: list[BaseException] = []

    def sleep(self, seconds: float) -> None:
        """Lets the others run."""
        awake = self._lie_down(seconds)
        self._go_on()
        awake.acquire()

    def call_later(self, seconds: float, do: Callable[[], object]) -> None:
        """By whichever thread is there; `do` must not sleep."""
        heapq.heappush(self._later, (self.now + seconds, next(self._numbers), do, False))

    def run(self, *actors: Callable[[], None]) -> None:
        """Until all have returned; raises what the first of them has raised."""
        threads = [threading.Thread(target=self._main, args=(actor, self._lie_down(0.0))) for actor in actors]
        for thread in threads:
            thread.start()
        self._go_on()
        self._over.wait()
        for thread in threads:
            thread.join()
        for failure in self._failures:
            raise failure

    def _main(self, actor: Callable[[], None], awake: threading.Semaphore) -> None:
        awake.acquire()
        try:
            actor()
        except BaseException as error:  # noqa: BLE001 - the caller of `run` gets it
            self._failures.append(error)
        self._go_on()

    def _lie_down(self, seconds: float) -> threading.Semaphore:
        awake = threading.Semaphore(0)
        heapq.heappush(self._later, (self.now + seconds, next(self._numbers), awake.release, True))
        return awake

    def _go_on(self) -> None:
        while self._later:
            self.now, _, do, is_thread = heapq.heappop(self._later)
            try:
                do()
            except BaseException as error:  # noqa: BLE001 - the caller of `run` gets it
                self._failures.append(error)
            if is_thread:
                return
        self._over.set()
