"""What happens to a job when, as it follows from a seed. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

Victim = TypeVar("Victim")
KINDS = ("worker", "server", "scheduler")
_PAUSE = 0.2, 2.0
"""Shortest and longest, in seconds."""


@dataclass(frozen=True)
class Disturbance:
    """One, before it is known who is there."""

    after: float
    """Seconds since the one before it, or since the first may come."""
    kinds: tuple[str, ...]
    """Whom it meets; the next kind, if there is nobody of the first."""
    place: float
    """Which of them, as a share of those who are there."""
    spawn: bool
    """Whether another one takes the place at once."""
    pause: float
    """Seconds for which the process is stopped; 0: it is killed."""

    def victim(self, candidates: Sequence[Victim]) -> Victim:
        """One of these, of whom there is at least one."""
        return candidates[int(self.place * len(candidates))]


@dataclass(frozen=True)
class Violence:
    """How often what happens to whom. The same values make the same disturbances."""

    seed: int
    every: tuple[float, float] = (0.5, 2.0)
    """Shortest and longest time between two, in seconds."""
    spawn: float = 0.6
    """Share of the killed whose place is taken at once; the others' is at one of the next disturbances."""
    kinds: tuple[str, ...] = KINDS
    pauses: float = 0.0
    """Share of disturbances that stop a process for a while, instead of killing it."""

    def disturbances(self) -> Iterator[Disturbance]:
        """Without end. Each takes the same number of random values, whatever comes of it."""
        source = random.Random(self.seed)
        while True:
            after, place = source.uniform(*self.every), source.random()
            kinds = tuple(source.sample(self.kinds, len(self.kinds)))
            spawn, pause = source.random() < self.spawn, source.uniform(*_PAUSE)
            yield Disturbance(after, kinds, place, spawn, pause if source.random() < self.pauses else 0.0)
