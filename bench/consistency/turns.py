"""What a rank did in one turn of a contender, and the figures that are made of it. No torch here."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass
class RankTurn:
    """One rank's steps, or none if it sat out. Seconds from the start of the turn, and bytes, step by step."""

    landed: list[float] = field(default_factory=list)
    """When the weights were there."""
    blocked: list[float] = field(default_factory=list)
    """How long the rank did not compute."""
    versions: list[int] = field(default_factory=list)
    """Of the weights that landed."""
    sent: list[int] = field(default_factory=list)
    received: list[int] = field(default_factory=list)
    ages: list[int] = field(default_factory=list)
    """Of contributions that were applied."""


Turn = Sequence[RankTurn]
"""By rank."""
Figure = Callable[[Turn], float]

FAST = slice(0, 3)
"""The ranks that are not slow in S1."""


def step_rate(turn: Turn) -> float:
    """Steps per second of a rank, on average."""
    return statistics.mean(len(rank.landed) / rank.landed[-1] for rank in turn if rank.landed)


def fast_rate(turn: Turn) -> float:
    """The same of the fast ranks alone."""
    return step_rate(turn[FAST])


def slow_rate(turn: Turn) -> float:
    """The same of the others."""
    return step_rate(turn[FAST.stop :])


def steady_fast_rate(turn: Turn) -> float:
    """Steps per second of the fast ranks, once their lead is used up: in the second half of their steps."""
    rates = []
    for rank in turn[FAST]:
        half = len(rank.landed) // 2
        rates.append((len(rank.landed) - half) / (rank.landed[-1] - rank.landed[half - 1]))
    return statistics.mean(rates)


def version_rate(turn: Turn) -> float:
    """Versions per second, until the first rank has the last of those that all have come to."""
    ranks = [rank for rank in turn if rank.landed]
    last = min(rank.versions[-1] for rank in ranks)
    seen = [time for rank in ranks for time, version in zip(rank.landed, rank.versions, strict=True) if version >= last]
    return last / min(seen)


def wait(turn: Turn) -> float:
    """Seconds per step that ranks did not compute, in the second half of their steps."""
    return statistics.mean(statistics.mean(rank.blocked[len(rank.blocked) // 2 :]) for rank in turn if rank.blocked)


def mean_age(turn: Turn) -> float:
    """Of all contributions."""
    return statistics.mean(age for rank in turn for age in rank.ages)


def step_time(turn: Turn) -> float:
    """Seconds, of the slowest rank."""
    return max(rank.landed[-1] / len(rank.landed) for rank in turn)


def bytes_per_step(turn: Turn) -> float:
    """Payload that a rank sends."""
    return statistics.mean(sum(rank.sent) / len(rank.sent) for rank in turn)


def bytes_down(turn: Turn) -> float:
    """Payload per step that a rank receives."""
    return statistics.mean(sum(rank.received) / len(rank.received) for rank in turn)


def bytes_both_ways(turn: Turn) -> float:
    """Payload per step that a rank sends and receives."""
    return statistics.mean((sum(rank.sent) + sum(rank.received)) / len(rank.sent) for rank in turn)


def burst(turn: Turn, steps: int = 3) -> float:
    """Most payload that a rank sends within so many steps."""
    return max(sum(rank.sent[first : first + steps]) for rank in turn for first in range(len(rank.sent)))
