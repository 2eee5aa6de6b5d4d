"""Starts the ranks of a job on a lab, each on its own host, and gathers what they did, or are predicted to do."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.consistency.simulated import Case, simulated
from bench.consistency.turns import RankTurn
from bench.consistency.ways import JOBS, Plan
from bench.processes import module
from byteps_like.launch.lab.hosts import Lab
from byteps_like.launch.lab.job import run_in_lab
from byteps_like.launch.options import RunOptions

Turns = list[dict[str, list[RankTurn]]]
"""Turn by turn, by way, by rank."""

PATIENCE = {"BYTEPS_LIKE_STALL_WARNING": "3600", "BYTEPS_LIKE_STALL_TIMEOUT": "3600"}
"""The environment of jobs: a rank that sits out waits for the others at a barrier."""


@dataclass(frozen=True)
class Settings:
    """How jobs are run. `compute`: seconds of a step; `nbytes`: of the model; `scale`: of the jobs' steps."""

    turns: int
    compute: float
    nbytes: int
    rate: str
    servers: int
    scale: float
    timeout: float


def measured(name: str, ways: Sequence[str], settings: Settings) -> tuple[Turns, Turns]:
    """What ranks did, and what they were to do by the policies and the links alone. A job that fails ends the process
    with its exit code."""
    workers = JOBS[name].workers
    hosts = workers + settings.servers
    with tempfile.TemporaryDirectory(prefix="consistency-") as folder, Lab(hosts, rate=settings.rate) as lab:
        goodput = statistics.median(lab.goodput() for _ in range(3))
        steps = JOBS[name].scaled(settings.scale)
        plan = Plan(name, list(ways), settings.turns, steps, settings.compute, settings.nbytes, folder)
        command = module("bench.consistency.turns_worker", str(plan.save()))
        options = RunOptions(
            command, workers, settings.servers, environment=PATIENCE, quiet=True, timeout=settings.timeout
        )
        if code := run_in_lab(lab, options):
            sys.exit(code)
        return read(Path(folder), workers), predicted(plan, settings.servers, goodput)


def read(folder: Path, workers: int) -> Turns:
    """What all ranks have left there."""
    ranks = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(workers)]
    return [
        {name: [RankTurn(**turn[name]) for turn in by_rank] for name in by_rank[0]}
        for by_rank in zip(*ranks, strict=True)
    ]


def predicted(plan: Plan, servers: int, goodput: float) -> Turns:
    """The same by simulation, of those ways that have one."""
    return [
        {
            name: _simulated(plan, turn, name, (servers, goodput))
            for name in plan.ways
            if JOBS[plan.job].ways[name].policy
        }
        for turn in range(plan.turns)
    ]


def _simulated(plan: Plan, turn: int, name: str, links: tuple[int, float]) -> list[RankTurn]:
    job, (servers, goodput) = JOBS[plan.job], links
    way = job.ways[name]

    def compute(rank: int, contribution: int) -> float:
        steps = range(contribution * way.every, (contribution + 1) * way.every)
        return sum(plan.seconds(turn, rank, step, way.parts) for step in steps)

    steps = tuple(way.steps(job.scenario, rank, plan.steps) // way.every for rank in range(job.workers))
    own = plan.nbytes / goodput
    return simulated(Case(way.policy, steps, compute, own, own / servers, way.versions(plan.steps)))
