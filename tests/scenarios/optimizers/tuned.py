"""Tuning while training: `body(bps, rank, size)`, for threads and processes. Two ranks: their sums are exact."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from byteps_like.config_values import SMALLEST_PARTITION
from byteps_like.torch.adapt.tuning import Tuning
from byteps_like.tuner.rounds import TrialPace
from byteps_like.tuner.search import Listed
from byteps_like.tuner.setting import Setting
from tests.scenarios.models import batch, flat, loss_of, mlp

PACE = TrialPace(trials=6, discard=1, measure=1)
GRID = [
    Setting("server", 1024, 4096, 2048), Setting("allreduce", 2048), Setting("server", 512),
    Setting("allreduce", 1024, algorithm="ring"), Setting("server", 4 << 20), Setting("server", 1024, 8192),
]  # fmt: skip
STEPS = 1 + 2 * PACE.trials + 3


def trained(bps: Any, rank: int, grid: list[Setting] | None) -> tuple[torch.Tensor, list[Setting | None]]:
    """Weights after STEPS steps, and the setting in force after each."""
    model = mlp()
    plain = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer, seen = bps.DistributedOptimizer(plain, model.named_parameters()), []
    if grid is not None:
        Tuning(optimizer._distribution.reducer, pace=PACE, search=Listed(grid))
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, *batch(100 * rank + step)).backward()
        optimizer.step()
        seen.append(optimizer.tuned)
    optimizer.close()
    return flat(model), seen


def weights_stay(bps: Any, rank: int, size: int) -> None:
    """Over every kind of setting, by both routes, without a restart."""
    assert size == 2
    grid = [replace(setting, partition_bytes=max(setting.partition_bytes, SMALLEST_PARTITION)) for setting in GRID]
    tuned, seen = trained(bps, rank, grid)
    plain, _ = trained(bps, rank, None)
    assert torch.equal(tuned, plain)
    assert [seen[2 * trial] for trial in range(len(grid))] == grid
    assert seen[-1] in grid
