"""One rank of bench/plan/tuner.py: the grid, the tuner, and both their bests in turn, on one emulated model."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch

import byteps_like.torch as bps
from bench.emulated import emulate
from byteps_like.planner.workloads import load
from byteps_like.torch.adapt.tuning import Tuning
from byteps_like.tuner.log import Log
from byteps_like.tuner.rounds import TrialPace
from byteps_like.tuner.search import Listed
from byteps_like.tuner.setting import Setting

RATE = 0.5
_MIB = 1 << 20


@dataclass(frozen=True)
class Plan:
    """What all ranks are told. `seconds` of compute and `total_bytes` of gradients per step."""

    model: str
    total_bytes: int
    seconds: float
    servers: int
    route: str
    trials: int
    measure: int
    turns: int
    folder: str
    saved: str


def grid(plan: Plan) -> list[Setting]:
    """Every combination, coarsely; with servers by either route, if none was chosen."""
    partitions = (_MIB // 2, _MIB, 4 * _MIB, 16 * _MIB)
    among = [
        Setting("allreduce", partition, segment_bytes=128 << 10, algorithm=algorithm)
        for partition in partitions for algorithm in ("ring", "halving_doubling")
    ]  # fmt: skip
    credits = (_MIB // 2, _MIB, 4 * _MIB, 16 * _MIB)
    by_servers = [Setting("server", size, credit, 128 << 10) for size in partitions for credit in credits]
    return [
        *(among if plan.route != "server" else ()),
        *(by_servers if plan.servers and plan.route != "allreduce" else ()),
    ]


class Trainer:
    """The model, its optimizer, and the steps it has made."""

    def __init__(self, plan: Plan, rank: int) -> None:
        workload = load(plan.model).scaled(total_bytes=plan.total_bytes, compute_seconds=plan.seconds)
        self._model = emulate(workload, float(rank + 1))
        self._optimizer: Any = bps.DistributedOptimizer(
            torch.optim.SGD(self._model.parameters(), lr=RATE), self._model.named_parameters(), route=plan.route
        )
        self._made = 0

    def tune(self, *arguments: Any) -> Log:
        """Steps until the tuning that `arguments` describe is done."""
        tuning = Tuning(self._optimizer._distribution.reducer, *arguments)
        while not tuning.done:
            self._optimizer.zero_grad()
            self._model(torch.zeros(1, requires_grad=True)).sum().backward()
            self._optimizer.step()
            self._made += 1
        return tuning.log

    def check(self, size: int) -> None:
        """All weights are what the steps with the mean of 1..size make of zero, to the bit."""
        expected = -RATE * self._made * (size + 1) / 2
        for name, parameter in self._model.named_parameters():
            if not bool((parameter == expected).all()):
                raise RuntimeError(f"{name} is not {expected} everywhere")


def main() -> None:
    plan = Plan(**json.loads(Path(sys.argv[1]).read_text()))
    rank, size = int(os.environ["BYTEPS_LIKE_RANK"]), int(os.environ["BYTEPS_LIKE_WORLD_SIZE"])
    torch.set_num_threads(1)
    bps.init()
    trainer, points = Trainer(plan, rank), grid(plan)
    by_grid = trainer.tune("on", TrialPace(len(points), 1, plan.measure), Listed(points))
    tuned = trainer.tune(plan.saved if rank == 0 else "on", TrialPace(plan.trials, 1, plan.measure))
    logs = {"grid": by_grid, "tuner": tuned}
    both = [by_grid.best.setting, tuned.best.setting] if rank == 0 else points[:2]
    in_turn = Listed(islice(cycle(both), 2 * plan.turns))
    logs["in turn"] = trainer.tune("on", TrialPace(2 * plan.turns, 1, 2 * plan.measure), in_turn)
    trainer.check(size)
    if rank == 0:
        text = {name: [asdict(trial) for trial in log.trials] for name, log in logs.items()}
        (Path(plan.folder) / "logs.json").write_text(json.dumps(text))
    bps.shutdown()


if __name__ == "__main__":
    main()
