"""Simulated time: events in the order of their times, and processes that sleep and wait."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator
from typing import Any


class SimulatedClock:
    """Runs events in the order of their times; those of one time in the order in which they were asked for."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = 0

    def at(self, time: float, action: Callable[..., None], *arguments: Any) -> None:
        """Calls `action(*arguments)` when it is `time` seconds. Raises ValueError for the past."""
        if time < self.now:
            raise ValueError(f"an event for {time} s at {self.now} s: time runs forward only")
        self._order += 1
        heapq.heappush(self._queue, (time, self._order, action, arguments))

    def run(self) -> None:
        """Until nothing more happens."""
        while self._queue:
            self.now, _, action, arguments = heapq.heappop(self._queue)
            self.events += 1
            action(*arguments)

    def start(self, process: Process) -> None:
        """Runs a generator that yields seconds to sleep, or a SimulatedGate to wait for."""
        self.at(self.now, self._resume, process)

    def _resume(self, process: Process) -> None:
        for wanted in process:
            if not isinstance(wanted, SimulatedGate):
                self.at(self.now + wanted, self._resume, process)
                return
            if not wanted.open:
                wanted.waiting.append(process)
                return


class SimulatedGate:
    """What processes wait for: open once `count` things have happened."""

    def __init__(self, clock: SimulatedClock, count: int = 1) -> None:
        self.waiting: list[Process] = []
        self._clock = clock
        self._missing = count

    @property
    def open(self) -> bool:
        """Whether nobody has to wait."""
        return self._missing <= 0

    def happened(self) -> None:
        """One of the things has."""
        self._missing -= 1
        if self._missing == 0:
            waiting, self.waiting = self.waiting, []
            for process in waiting:
                self._clock.start(process)


Process = Generator[float | SimulatedGate, None, None]
