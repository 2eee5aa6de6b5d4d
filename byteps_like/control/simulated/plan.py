"""What a seed decides of a simulated job: who takes part, and what goes wrong when."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

FAULTS = ("reset", "stall", "long stall", "kill", "power off", "kill scheduler", "disk full", "kill server", "drain")


@dataclass(frozen=True)
class Fault:
    """One of FAULTS."""

    at: float
    what: str
    who: int
    """Which of those that there are then, modulo how many."""
    seconds: float
    """For which it lasts."""


@dataclass(frozen=True)
class ControlPlan:
    """Of one job."""

    workers: int
    servers: int
    least: int
    """Workers with which a world may go on."""
    faults: tuple[Fault, ...]
    seconds: float
    """When the workers are to end."""
    copies: int = 0
    """How many servers have each value that they keep; 0: they keep none."""


def draw_plan(seed: int) -> ControlPlan:
    """From the seed alone."""
    random = Random(seed)
    workers, servers = random.randint(2, 6), random.choice([0, 1, 1, 2, 3])
    faults = sorted(
        (_fault(random) for _ in range(random.choice([0, 1, 1, 2, 3, 5, 8]))), key=lambda fault: fault.at
    )  # fmt: skip
    last = max((fault.at + fault.seconds for fault in faults), default=0.0)
    least, seconds = random.randint(1, 2), last + random.uniform(30, 50)
    return ControlPlan(workers, servers, least, tuple(faults), seconds, random.choice([0, 0, 1, 2]))


def _fault(random: Random) -> Fault:
    what = random.choice(FAULTS)
    longest = {"stall": 0.4, "long stall": 8.0, "disk full": 3.0}.get(what, 0.0)
    return Fault(random.uniform(0.0, 20.0), what, random.randrange(12), random.uniform(0.0, longest))
