"""Weights that travel as factors while updates cross the barrier, as seen by one rank: `body(bps, rank, size)`. The
reference is the same optimizer made to wait in step(); both must hold the same bits, while the same weights travel as
factors."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.scenarios.checks import raises, same_everywhere
from tests.scenarios.crossing.models import OPTIMIZERS, Run, same
from tests.scenarios.models import distance, fill, flat, recomputed
from tests.scenarios.optimizers.factors import Odd, layers_of, rows_of


def odd_loss(model: nn.Module, step: int, rank: int, size: int) -> torch.Tensor:
    return model(rows_of(rank, step)[:1].to(next(model.parameters()).dtype)).square().mean()


def compared(
    bps: Any, rank: int, size: int, make: Any, loss: Any, steps: int, new: Callable[[], nn.Module] | None = None,
    **options: Any,
) -> tuple[list[Run], list[int]]:  # fmt: skip
    """Trains the same with and without the barrier. Both runs, and which steps of the one that crosses it waited."""
    passes, waited, runs = options.get("backward_passes_per_step", 1), [], []
    for crosses in (True, False):
        model = fill(Odd().double()) if new is None else new()
        runs.append(Run(bps, crosses, make, model, **{"sufficient_factors": True, **options}))
        for step in range(steps):
            runs[-1].train(rank, size, range(step, step + 1), loss, passes)
            if crosses and runs[-1].optimizer._distribution.guards.flight is None:
                waited.append(step)
        runs[0].optimizer.synchronize() if crosses else None
        same_everywhere(bps, flat(model))
    return runs, waited


def ways(run: Run) -> dict[str, bool]:
    return {name: layer.left for name, layer in layers_of(run.optimizer).items()}


def as_if_it_waited(bps: Any, rank: int, size: int) -> None:
    """After the first step, in which all are in buckets, and the second, whose buckets are new, none waits."""
    options: list[dict[str, Any]] = [
        {}, {"op": bps.Sum, "backward_passes_per_step": 2}, {"gradient_predivide_factor": 2.0},
        {"compression": {"*.bias": bps.Compress("onebit", feedback=True)}},
        {"sufficient_factors": "auto"} if size == 1 else {"route": "allreduce"},
    ]  # fmt: skip
    for each in options:
        runs, waited = compared(bps, rank, size, OPTIMIZERS["momentum"], odd_loss, 6, **each)
        same(*runs)
        assert waited == ([0, 1] if size > 1 else [0]), (each, waited)
        assert size == 1 or all(left for name, left in ways(runs[0]).items() if name != "last.weight")
        runs[0].optimizer.close()
    runs, _ = compared(bps, rank, size, OPTIMIZERS["Adam"], odd_loss, 4)
    same(*runs)


def element_types(bps: Any, rank: int, size: int) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        runs, _ = compared(
            bps, rank, size, OPTIMIZERS["SGD"], odd_loss, 4, lambda dtype=dtype: fill(Odd().to(dtype))
        )  # fmt: skip
        same(*runs)


def some_ranks_without_gradients(bps: Any, rank: int, size: int) -> None:
    """Layers, and all of the model, are reached on some ranks only, or on none."""

    def loss(model: Any, step: int, rank: int, size: int) -> torch.Tensor:
        x = rows_of(0, 0)[:1].reshape(-1, 6).double() * (rank + 1)
        used = {2: rank == 0, 3: False, 4: rank != 0}.get(step, True)
        out = model[0](x).square().mean()
        return out + model[1](x).square().mean() if used else out

    def new() -> nn.Module:
        return fill(nn.ModuleList([nn.Linear(6, 8), nn.Linear(6, 8)]).double())

    runs, _ = compared(bps, rank, size, OPTIMIZERS["momentum"], loss, 7, new)
    same(*runs)


def what_is_left(bps: Any, rank: int, size: int) -> None:
    """Gradients that come otherwise, and rows for which there is no room, are reduced while step() has returned."""

    def loss(model: Any, step: int, rank: int, size: int) -> torch.Tensor:
        count = 3 if step == 4 and rank == 0 else 1
        x = torch.cat([rows_of(rank, step)[:1].double()] * count)
        found = recomputed(model, x.requires_grad_()).square().mean()
        return found + model.twice.weight.square().sum() * 0.01 * (rank + 1) if step % 3 else found

    runs, waited = compared(bps, rank, size, OPTIMIZERS["Adam"], loss, 7)
    same(*runs)
    assert waited == ([0, 1] if size > 1 else [0]), waited


def back_and_forth(bps: Any, rank: int, size: int) -> None:
    """Weights return to their buckets one step later than without crossing, after one that waits."""

    def loss(model: nn.Module, step: int, rank: int, size: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(100 * step + rank)
        count = 5 if step in (4, 12) else 1 + rank % 2
        return model(torch.randn(count, 2, 6, generator=generator, dtype=torch.float64)).square().mean()

    runs, waited = compared(bps, rank, size, OPTIMIZERS["momentum"], loss, 14)
    assert distance(*(flat(run.model) for run in runs)) < 1e-12
    if size > 1:
        assert waited == [0, 1, 5, 6, 8, 9, 13], waited
        assert not ways(runs[0])["twice.weight"]


def nothing_but_factors(bps: Any, rank: int, size: int) -> None:
    """No bucket is left after the first step, so even the second doesn't wait."""

    def loss(model: nn.Module, step: int, rank: int, size: int) -> torch.Tensor:
        return model(rows_of(rank, step)[:1].double()).square().mean()

    runs, waited = compared(
        bps, rank, size, OPTIMIZERS["Adam"], loss, 5, lambda: fill(nn.Linear(6, 8, bias=False).double())
    )  # fmt: skip
    same(*runs)
    assert waited == [0] and (size == 1 or ways(runs[0]) == {"weight": True})


def while_others_wait_elsewhere(bps: Any, rank: int, size: int) -> None:
    """What is left is reduced though the other ranks call no module: they are in a barrier that the first one comes to
    when it has seen its updated weights."""
    run = Run(bps, True, OPTIMIZERS["momentum"], fill(Odd().double()), sufficient_factors=True)
    run.train(rank, size, range(3), odd_loss)
    run.optimizer.zero_grad()
    (odd_loss(run.model, 3, rank, size) + run.model.twice.weight.square().sum()).backward()
    run.optimizer.step()
    if rank == 0:
        run.model(rows_of(0, 0))
    bps.barrier()
    run.optimizer.synchronize()
    same_everywhere(bps, flat(run.model))


SCENARIOS = [
    as_if_it_waited, element_types, some_ranks_without_gradients, what_is_left, back_and_forth, nothing_but_factors,
    while_others_wait_elsewhere,
]  # fmt: skip


def thrown_away(bps: Any, rank: int, size: int) -> None:
    """One rank throws its gradients away: no rank updates a weight by factors that have landed; then all go on."""
    model = fill(nn.Linear(6, 8, bias=False).double())
    run = Run(bps, True, OPTIMIZERS["momentum"], model, sufficient_factors=True)

    def loss(model: nn.Module, step: int, rank: int, size: int) -> torch.Tensor:
        return model(rows_of(rank, step)[:1].double()).square().mean()

    run.train(rank, size, range(3), loss)
    run.optimizer.synchronize()
    before = flat(model).clone()
    loss(model, 3, rank, size).backward()
    if rank == 0:
        raises(bps.MismatchError, run.optimizer.zero_grad, "same calls")
    else:
        run.optimizer.step()
        raises(bps.MismatchError, lambda: model(rows_of(0, 0)), "same calls")
    assert torch.equal(flat(model), before)
    run.train(rank, size, range(4, 16), loss)
    run.optimizer.synchronize()
    same_everywhere(bps, flat(model))


def returns_at_once(bps: Any, rank: int, size: int, gone_on: threading.Event) -> None:
    """Ranks but the first have no gradients before the first one's step() has returned."""
    model = fill(Odd().double())
    run = Run(bps, True, OPTIMIZERS["momentum"], model, sufficient_factors=True)
    run.train(rank, size, range(3), odd_loss)
    run.optimizer.synchronize()
    if rank:
        assert gone_on.wait(20.0)
    before = model.first.weight.detach().clone()
    run.train(rank, size, range(3, 4), odd_loss)
    if rank == 0:
        assert torch.equal(model.first.weight, before)
        gone_on.set()
    model.first(rows_of(0, 0))
    assert not torch.equal(model.first.weight, before)
    run.optimizer.synchronize()
    same_everywhere(bps, flat(model))
