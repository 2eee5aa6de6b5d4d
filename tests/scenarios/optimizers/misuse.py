"""Calls that can't be right, and what each rank is told. `body(bps, rank, size)`; sizes of 2 and more."""

from __future__ import annotations

from typing import Any

import torch

from tests.scenarios.checks import matches, raises, same_everywhere
from tests.scenarios.models import flat
from tests.scenarios.optimizers.membership import sgd
from tests.scenarios.optimizers.updates import backward, pair, steps


def too_many_backwards(bps: Any, rank: int, size: int) -> None:
    model, optimizer, _, _ = pair(bps)
    backward(model, 0, rank, size)
    raises(bps.InvalidArgumentError, lambda: backward(model, 0, rank, size), "backward_passes_per_step=1", "zero_grad")
    optimizer.zero_grad()
    items = pair(bps, backward_passes_per_step=2)
    backward(items[0], 0, rank, size)
    raises(bps.InvalidArgumentError, lambda: items[1].set_backward_passes_per_step(0))
    backward(items[0], 1, rank, size)
    raises(bps.InvalidArgumentError, lambda: items[1].set_backward_passes_per_step(1), "between")
    raises(bps.InvalidArgumentError, lambda: backward(items[0], 2, rank, size), "=2")


def changed_in_flight(bps: Any, rank: int, size: int) -> None:
    for options in ({}, {"compression": bps.Compression.fp16}):
        for change in ("clip", "replace"):
            model, optimizer, _, _ = pair(bps, **options)
            backward(model, 0, rank, size)
            parameters = list(model.parameters())
            if change == "clip":
                torch.nn.utils.clip_grad_norm_(parameters, 1e-3)
            else:
                parameters[0].grad = parameters[0].grad * 2
            raises(bps.InvalidArgumentError, optimizer.step, "synchronize()", "skip_synchronize")


def works_after_misuse(bps: Any, rank: int, size: int) -> None:
    items = pair(bps)
    model, optimizer, reference, _ = items
    steps(bps, rank, size, items, range(2))
    backward(model, 7, rank, size)
    next(model.parameters()).grad.mul_(2)
    raises(bps.InvalidArgumentError, optimizer.synchronize)
    steps(bps, rank, size, items, range(2, 5))
    matches(bps, model, reference)


def changed_on_one_rank(bps: Any, rank: int, size: int) -> None:
    """All are told in the same step, which none of them makes; then all go on. In the first round, in which gradients
    are laid out anew, and in a later one."""
    ways = [{}, {"compression": "fp16"}, {"compression": {"*weight": "powersgd:rank=2"}}, {"route": "allreduce"}]
    for options in ways:
        for before in (0, 2):
            items = pair(bps, **options)
            model, optimizer, reference, _ = items
            steps(bps, rank, size, items, range(before))
            optimizer.zero_grad()
            backward(model, 7, rank, size)
            weights = flat(model).clone()
            if rank == size - 1:
                next(model.parameters()).grad.mul_(2)
                raises(bps.InvalidArgumentError, optimizer.step, "0.weight", "synchronize()")
            else:
                raises(bps.MismatchError, optimizer.step, "threw their gradients away", "changed in flight")
            assert torch.equal(flat(model), weights)
            steps(bps, rank, size, items, range(2, 5))
            same_everywhere(bps, flat(model))
            if "compression" not in options:
                matches(bps, model, reference)
        optimizer.close()


def failed_backward(bps: Any, rank: int, size: int) -> None:
    items = pair(bps)
    model = items[0]

    def explode(_: torch.Tensor) -> torch.Tensor:
        raise ValueError("boom")

    for _ in range(2):
        hook = model[0].weight.register_hook(explode)
        raises(ValueError, lambda: backward(model, 3, rank, size), "boom")
        hook.remove()
        steps(bps, rank, size, items, range(2))
    matches(bps, model, items[2])


def cleared_against_step(bps: Any, rank: int, size: int) -> None:
    model, optimizer, _, _ = pair(bps)
    backward(model, 0, rank, size)
    call = optimizer.zero_grad if rank == 0 else optimizer.step
    raises(bps.MismatchError, call, "same calls")


def models_differ(bps: Any, rank: int, size: int) -> None:
    bps.barrier()  # all are there before the first disagreement ends the job
    # As many elements on all ranks, but in other shapes.
    shape = (4, 6) if rank == 0 else (6, 4)
    parameter = torch.nn.Parameter(torch.ones(shape))
    raises(bps.MismatchError, lambda: (bps.DistributedOptimizer(sgd([parameter])), bps.barrier()), "checksum")


def checkpoints_differ(bps: Any, rank: int, size: int) -> None:
    tensors = {"a": torch.ones(2), "b": torch.ones(3 if rank < size - 1 else 4)}
    raises(bps.MismatchError, lambda: bps.broadcast_parameters(tensors), f"rank {size - 1}", "'b float32 (4,)'")
    assert tensors["a"].tolist() == [1.0, 1.0]
    if rank == size - 1:
        del tensors["b"]
    raises(bps.MismatchError, lambda: bps.broadcast_parameters(tensors), "has 1 tensors")
    bps.broadcast_parameters({"a": torch.ones(2)})


SCENARIOS = [
    too_many_backwards, changed_in_flight, works_after_misuse, changed_on_one_rank, failed_backward,
    cleared_against_step, models_differ, checkpoints_differ,
]  # fmt: skip
"""Bodies that need nothing but (bps, rank, size)."""
