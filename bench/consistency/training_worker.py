"""One rank of bench/consistency/training.py: trains in all ways, for each seed; rank 0 leaves the scores as JSON.

Any step is slow now and then, so that contributions do get old.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import byteps_like.torch as bps
from bench.consistency.scenarios import S2
from bench.consistency.tasks import Flat, Task, begun
from bench.consistency.training_plan import TRAININGS, Plan, Training

COMPUTE = 1e-3  # seconds


def train(step: Callable[[], Any], more: Callable[[int], bool], seed: int) -> None:
    """Steps as long as there are `more` to come after so many."""
    made = 0
    while more(made):
        time.sleep(COMPUTE * S2.factor(seed, bps.rank(), made))
        step()
        made += 1


def score(training: Training, name: str, seed: int, samples: int) -> float:
    """Of what was trained."""
    task, model = begun(name, bps.rank(), bps.size(), seed)
    plain = torch.optim.SGD(model.parameters(), lr=task.rate * training.together / bps.size())
    run = _by_low_comm if training.low_comm else _by_optimizer
    run(training, task, model, plain, (seed, samples))
    with torch.no_grad():
        return task.score(model)


def _step(task: Task, model: Flat, optimizer: Any) -> Callable[[], None]:
    def step() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(task.loss(model))
        optimizer.step()

    return step


def _by_optimizer(
    training: Training, task: Task, model: Flat, plain: torch.optim.Optimizer, how: tuple[int, int]
) -> None:
    seed, samples = how
    optimizer = bps.DistributedOptimizer(plain, model.named_parameters(), **training.terms)
    steps, versions = samples // (task.batch * bps.size()), samples // (task.batch * training.together)
    more = (lambda _: optimizer.version < versions) if training.by_versions else (lambda made: made < steps)
    bps.barrier()
    train(_step(task, model, optimizer), more, seed)
    bps.barrier()
    if training.terms:
        optimizer.pull()
    optimizer.close()


def _by_low_comm(
    training: Training, task: Task, model: Flat, plain: torch.optim.Optimizer, how: tuple[int, int]
) -> None:
    seed, samples = how
    steps = samples // (task.batch * bps.size())
    outer = {"outer": bps.AveragedWeights()} if "outer" in training.terms else {}
    with bps.LowComm(model, plain, **{**training.terms, **outer}) as low:
        plain_step = _step(task, model, plain)

        def step() -> None:
            low.count(task.batch)
            plain_step()

        bps.barrier()
        train(step, lambda made: made < steps, seed)
    bps.barrier()


def main() -> None:
    plan = Plan(**json.loads(Path(sys.argv[1]).read_text()))
    torch.set_num_threads(1)
    bps.init()
    found = {
        name: [score(training, plan.task, seed, plan.samples) for seed in range(plan.seeds)]
        for name, training in TRAININGS.items()
    }
    if bps.rank() == 0:
        (Path(plan.folder) / "scores.json").write_text(json.dumps(found))
    bps.shutdown()


if __name__ == "__main__":
    main()
