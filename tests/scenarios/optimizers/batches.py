"""Batches by speed. `body(bps, rank, size)`."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

from tests.scenarios.checks import raises, same_everywhere
from tests.scenarios.models import flat


def follow_a_slow_rank(bps: Any, rank: int, size: int) -> tuple[int, ...]:
    """The last rank takes twice as long for a sample: shares after some steps."""
    seconds = 0.002 if rank == size - 1 else 0.001
    model = nn.Linear(4, 1)
    bps.broadcast_parameters(model.state_dict())
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01))
    shares = bps.BatchShares(14 * size)
    for step in range(15):
        inputs = torch.randn(14 * size, 4, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        with shares.step() as own:
            time.sleep(own * seconds)
            (model(inputs[shares.slice]).square().mean() * shares.scale).backward()
        optimizer.step()
    same_everywhere(bps, flat(model))
    return shares.by_rank


def ranks_differ(bps: Any, rank: int, size: int) -> None:
    raises(bps.MismatchError, lambda: bps.BatchShares(64, every=1 + (rank == 1)), "every=1", "every=2")
    shares = bps.BatchShares(64)
    with shares.step() as own:
        assert own == 64 // size


def leave_at_once(bps: Any, rank: int, size: int) -> None:
    """Speeds are under way that nobody will ask for."""
    shares = bps.BatchShares(64)
    for _ in range(2):
        with shares.step():
            pass
