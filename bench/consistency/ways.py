"""The ways of training that take turns, by name, and in which jobs. No torch here."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from bench.consistency.scenarios import CALM, S1, S2, S10, SLOW, STALLS, Scenario
from byteps_like.store.gradient_coding import GradientCoding

DSSP = "dssp:lo=1,hi=8"
FEDSA = "k_of_n:k=3,late=next"
SOFTSYNC = "k_of_n:k=2,late=next"

LGC = "k_of_n:k=3,grace=0.02,late=next"
BLOCKS = 8
"""Of a mini-batch. A slow one takes half of a fast step, and less than the grace."""

CODING = GradientCoding(4, s=1).options

Kind = Literal["store", "factors", "portions", "optimizer", "blocks", "low_comm", "alone"]

EVERY = 20
"""Steps between two synchronizations of LowComm, where nobody is slow."""
ROUND = 10
"""The same where a rank is slow."""


@dataclass(frozen=True)
class Way:
    """How all ranks train in a turn.

    `kind`: by a Store, by factors of a matrix in a Store, in portions of a Store, by a DistributedOptimizer, with
    mini-batches in blocks, by a LowComm, or without any network; `terms`: its arguments.
    """

    kind: Kind
    terms: Mapping[str, Any] = field(default_factory=dict)
    versions_per_step: float = 0.0
    """Above 0: a turn ends with so many versions for each of its steps. 0: each rank makes the turn's steps."""
    without_slow: bool = False
    """Whether the slow rank sits out."""
    shared_out: bool = False
    """Whether the slow rank makes fewer steps, so that all end at about the same time."""
    longer: int = 1
    """A turn has so many times the steps of the job's others."""
    policy: str = ""
    """What a simulation runs; "": there is none."""
    every: int = 1
    """Steps of which one contribution is made."""
    parts: int = 1
    """Of the batch, that a rank computes in a step; what makes a step slow comes once."""

    def steps(self, scenario: Scenario, rank: int, steps: int) -> int:
        """Of a rank, in a turn of so many."""
        steps *= self.longer
        if rank == scenario.always and self.without_slow:
            return 0
        return steps // SLOW if rank == scenario.always and self.shared_out else steps

    def versions(self, steps: int) -> int | None:
        """With how many a turn of so many steps ends."""
        return math.ceil(self.versions_per_step * steps) if self.versions_per_step else None


def stored(consistency: str, versions_per_step: float = 0.0, **more: Any) -> Way:
    """By a Store."""
    return Way("store", {"consistency": consistency}, versions_per_step, policy=consistency, **more)


def _quorum(grace: float | str = 0.0, **more: Any) -> Way:
    terms = {"every": ROUND, "quorum": 0.75, "grace": grace, "weight": "tokens**2/steps"}
    policy = "" if grace else FEDSA  # a simulation has no clock by which to wait
    return Way("low_comm", terms, shared_out=True, longer=4, policy=policy, every=ROUND, **more)


def _worker(**more: Any) -> Way:
    return Way("optimizer", {"consistency": "asp", "apply": "worker"}, shared_out=True, policy="asp", **more)


FIXED = {"ssp:s=1": stored("ssp:s=1"), "ssp:s=3": stored("ssp:s=3"), "ssp:s=8": stored("ssp:s=8")}


FACTOR = 1 / 16
"""Samples of a step, of the rows of a square matrix: how many bytes its factors have follows from that."""

STEPS = 20
"""A turn has a multiple: LowComm contributes after the last."""


@dataclass(frozen=True)
class Job:
    """Ranks, each on its own host, that go through turns of all `ways`; `steps` of each, a multiple of STEPS."""

    scenario: Scenario
    workers: int
    steps: int
    ways: Mapping[str, Way]

    def scaled(self, scale: float) -> int:
        """Its steps by that factor."""
        return max(1, round(self.steps * scale / STEPS)) * STEPS


JOBS = {
    "calm": Job(CALM, 4, 60, {
        "alone": Way("alone"),
        "bsp": Way("optimizer"),
        "DiLoCo": Way("low_comm", {"every": EVERY}),
        "streaming": Way("low_comm", {"every": EVERY, "fragments": 4, "delay": 2}),
        "every step": Way("optimizer", {"consistency": "asp"}),
        "every 4 steps": Way("optimizer", {"consistency": "asp", "push_every": 4, "pull_every": 4}),
        "matrix": Way("store", {"whole": True}),
        "factors": Way("factors"),
    }),
    "S1": Job(S1, 4, 40, {
        "asp": stored("asp", shared_out=True),
        **FIXED,
        DSSP: stored(DSSP),
        FEDSA: stored(FEDSA, 1),
        "fast ranks": stored(FEDSA, 1, without_slow=True),
        LGC: Way("blocks", {"consistency": LGC}, 1),
        "asp, by workers": _worker(),
        "asp, by workers, fast ranks": _worker(without_slow=True),
        "quorum": _quorum(),
        "quorum, fast ranks": _quorum(without_slow=True),
        "decoupled": _quorum(grace="auto"),
        "decoupled, fast ranks": _quorum(grace="auto", without_slow=True),
    }),
    "S2": Job(S2, 4, 160, {
        "asp": stored("asp", 4),
        "bsp": stored("bsp"),
        **FIXED,
        DSSP: stored(DSSP),
        SOFTSYNC: stored(SOFTSYNC, 2),
        LGC: Way("blocks", {"consistency": LGC}, 1),
    }),
    "eight": Job(S2, 8, 160, {
        "bsp": stored("bsp"),
        "ssp:s=3": stored("ssp:s=3"),
        "backup:b=1": stored("backup:b=1", 1),
        "backup:b=2": stored("backup:b=2", 1),
    }),
    "portions": Job(S10, 4, 20, {
        "portions": Way("portions"),
        "portions, fast ranks": Way("portions", without_slow=True),
    }),
    "stalls": Job(STALLS, 4, 80, {
        "bsp": stored("bsp"),
        "coded": Way("store", CODING, 1, policy=CODING["consistency"], parts=2),
    }),
}  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """What all ranks of a job are told. `compute`: seconds of a step; `nbytes`: of the model."""

    job: str
    ways: list[str]
    turns: int
    steps: int
    compute: float
    nbytes: int
    folder: str

    def save(self) -> Path:
        """Where the ranks read it."""
        path = Path(self.folder) / "plan.json"
        path.write_text(json.dumps(asdict(self)))
        return path

    def seconds(self, turn: int, rank: int, step: int, parts: int = 1) -> float:
        """Of compute; each turn has its own slow steps, and all ways have the same in it."""
        return self.compute * (JOBS[self.job].scenario.factor(turn, rank, step) + parts - 1)
