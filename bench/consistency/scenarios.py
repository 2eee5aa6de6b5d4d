"""How long each step of each rank takes to compute. Pure: all contenders, and the simulation, see the same delays."""

from __future__ import annotations

import random
from dataclasses import dataclass

SLOW = 4
"""A slow step takes so many times as long, if nothing else is said."""


@dataclass(frozen=True)
class Scenario:
    """Ranks that are slow: one of them always, or any now and then."""

    name: str
    always: int | None = None
    """A rank whose steps are all slow."""
    chance: float = 0.0
    """Of each step of each rank to be slow."""
    times: int = SLOW
    """A slow step takes so many times as long."""

    def factor(self, seed: int, rank: int, step: int) -> int:
        """By which a step, the first of which is 0, takes longer."""
        if rank == self.always:
            return self.times
        return self.times if random.Random(f"{seed}.{rank}.{step}").random() < self.chance else 1


CALM = Scenario("calm")
S1 = Scenario("S1", always=3)
S10 = Scenario("S10", always=3, times=10)
S2 = Scenario("S2", chance=0.1)
STALLS = Scenario("stalls", chance=0.1, times=10)
