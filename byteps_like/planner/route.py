"""What the two ways of a partition have in common: through servers, or by a collective among the workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from byteps_like.planner.clock import SimulatedClock
from byteps_like.planner.cluster import ClusterCosts
from byteps_like.planner.link import NicModel
from byteps_like.planner.server import Shard
from byteps_like.worker.api import Declared, Partition


class SimulatedRoute(Protocol):
    """How the partitions of a job are reduced. `cards` and `shards` are what may be busy."""

    partitions: tuple[Partition, ...]
    workers: int
    """Simulated ones; a single one stands for all."""
    cards: list[NicModel]
    shards: list[Shard]

    def push_pull(self, worker: int, part: int, turn: int, priority: int, done: Callable[[], None]) -> None:
        """`worker` hands over partition `part` in round `turn`; calls `done` when its result has landed."""


class SimulatedHost:
    """A machine's network card and memory. What goes over `inside` stays on it."""

    def __init__(self, clock: SimulatedClock, name: str, rate: float, costs: ClusterCosts) -> None:
        self.up = NicModel(clock, f"{name} sends", rate, costs.frame)
        self.down = NicModel(clock, f"{name} receives", rate)
        self.inside = (NicModel(clock, f"{name} copies", costs.memory_rate), NicModel(clock, f"{name} lands", math.inf))


def joined(declared: Sequence[Declared]) -> tuple[Partition, ...]:
    """The partitions of tensors that lie one behind the other."""
    found: list[Partition] = []
    offset = 0
    for one in declared:
        found += [replace(part, offset=offset + part.offset) for part in one.partitions]
        offset += one.spec.nbytes
    return tuple(found)
