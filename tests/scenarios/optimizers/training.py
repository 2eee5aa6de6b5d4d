"""Training steps as one rank makes them: `body(bps, rank, size, ...)`, for threads and for real processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.scenarios.checks import same_everywhere
from tests.scenarios.models import batch, flat, loss_of, mlp, share

MakeOptimizer = Callable[[Any], torch.optim.Optimizer]


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01)


def single(make: MakeOptimizer = sgd, dtype: torch.dtype = torch.float64, steps: int = 6) -> torch.Tensor:
    """The reference: one plain process with the whole batch."""
    model = mlp(dtype)
    optimizer = make(model.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, *batch(step)).backward()
        optimizer.step()
    return flat(model)


def train(
    bps: Any, rank: int, size: int, make: MakeOptimizer = sgd, dtype: torch.dtype = torch.float64,
    steps: int = 6, set_to_none: bool = True, **options: Any,
) -> torch.Tensor:  # fmt: skip
    """The same with a share of the batch per rank; ranks other than 0 begin with other parameters."""
    model = mlp(dtype, seed=1 + rank)
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = bps.DistributedOptimizer(make(model.parameters()), model.named_parameters(), **options)
    for step in range(steps):
        optimizer.zero_grad(set_to_none=set_to_none)
        x, y = batch(step)
        loss_of(model, share(x, rank, size), share(y, rank, size)).backward()
        optimizer.step()
    return flat(model)


def gradients(model: nn.Module) -> torch.Tensor:
    """All gradients, one after another; zeros where there is none."""
    return torch.cat([(p.grad if p.grad is not None else torch.zeros_like(p)).reshape(-1) for p in model.parameters()])


def fifty_steps(bps: Any, rank: int, size: int, dtype: torch.dtype) -> tuple[float, list[float]]:
    """Largest relative distance of a step's gradient to one process on the whole batch, and the losses on it."""
    model = mlp(dtype)
    optimizer = bps.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    losses, worst = [], 0.0
    for step in range(50):
        x, y = batch(step)
        whole = loss_of(model, x, y)
        expected = torch.cat([part.reshape(-1) for part in torch.autograd.grad(whole, list(model.parameters()))])
        optimizer.zero_grad()
        loss_of(model, share(x, rank, size), share(y, rank, size)).backward()
        optimizer.synchronize()
        found = gradients(model)
        same_everywhere(bps, found)
        worst = max(worst, float((found - expected).norm() / expected.norm()))
        with optimizer.skip_synchronize():
            optimizer.step()
        losses.append(float(whole.detach()))
    return worst, losses


def fifty_losses(dtype: torch.dtype) -> list[float]:
    """The losses of one plain process."""
    model = mlp(dtype)
    optimizer = sgd(model.parameters())
    losses = []
    for step in range(50):
        optimizer.zero_grad()
        loss = loss_of(model, *batch(step))
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses
