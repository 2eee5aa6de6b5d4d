"""How much memory and how many descriptors processes have, once they have run for a while."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import psutil

SETTLED = 120.0
"""Seconds that a process may take to come to what it needs."""
WATCHED = 60.0
"""Seconds after them, at least, in which it must not grow."""


@dataclass(frozen=True)
class Sample:
    """What a process had at a time."""

    at: float
    memory: int
    descriptors: int


@dataclass(frozen=True)
class ProcessGrowth:
    """What a process had more at its last sample than when it had settled."""

    name: str
    seconds: float
    memory: int
    descriptors: int


@dataclass
class _Life:
    name: str
    began: float
    settled: Sample | None = None
    last: Sample | None = None


class GrowthWatch:
    """Of processes on this machine, by their ids. Not thread-safe."""

    def __init__(self) -> None:
        self._lives: dict[int, _Life] = {}

    def began(self, process: int, name: str, now: float) -> None:
        """This process has been started."""
        self._lives[process] = _Life(name, now)

    def ended(self, process: int) -> None:
        """It is gone; what was seen of it counts if it was there for long enough."""
        life = self._lives[process]
        if life.settled is None or life.last is None or life.last.at < life.settled.at + WATCHED:
            del self._lives[process]

    def look(self, processes: list[int], now: float) -> None:
        """Takes a sample of those of these processes that have settled."""
        for process in processes:
            life = self._lives[process]
            if now >= life.began + SETTLED and (sample := _sample(process, now)) is not None:
                life.settled, life.last = life.settled or sample, sample

    def is_known(self, process: int, now: float) -> bool:
        """Whether it has been watched for long enough."""
        life = self._lives.get(process)
        return life is None or (life.settled is not None and now >= life.settled.at + WATCHED)

    def found(self) -> list[ProcessGrowth]:
        """Of all that were there for long enough, also those that are gone."""
        return [
            ProcessGrowth(life.name, last.at - settled.at, last.memory - settled.memory,
                          last.descriptors - settled.descriptors)
            for life in self._lives.values()
            if (settled := life.settled) and (last := life.last) and last.at >= settled.at + WATCHED
        ]  # fmt: skip


def _sample(process: int, now: float) -> Sample | None:
    with contextlib.suppress(psutil.Error):  # it has just ended
        found = psutil.Process(process)
        return Sample(now, found.memory_info().rss, found.num_fds())
    return None
