"""PowerSGD across the barrier: its second factors are sent when the first have landed, after step() has returned. The
reference is the same optimizer made to wait in step(); weights and what PowerSGD remembers are the same bits."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.scenarios.checks import raises, same_everywhere
from tests.scenarios.crossing.models import OPTIMIZERS, Loss, Run, Tied, plain_loss, same
from tests.scenarios.models import batch, fill, flat, mlp, share
from tests.scenarios.optimizers.membership import Branches

WEIGHTS = {"*weight": "powersgd:rank=2"}
"""Biases, vectors, and matrices that it would not halve stay dense."""


def odd(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """Matrices of odd sizes, in several partitions."""
    return mlp(dtype, (20, 33, 27, 19, 5))  # type: ignore[return-value]


def pairs(
    bps: Any, new: Callable[[], nn.Module] = odd, make: Any = OPTIMIZERS["momentum"], **options: Any
) -> list[Run]:  # fmt: skip
    """One that crosses the barrier and one that waits."""
    return [Run(bps, crosses, make, new(), **{"compression": WEIGHTS, **options}) for crosses in (True, False)]


def train(
    runs: list[Run], rank: int, size: int, steps: range, loss: Loss = plain_loss, passes: int = 1
) -> list[int]:  # fmt: skip
    """The steps in which the first has waited."""
    waited = []
    for step in steps:
        for run in runs:
            run.train(rank, size, range(step, step + 1), loss, passes)
        if runs[0].optimizer._distribution.guards.flight is None:
            waited.append(step)
    return waited


def all_same(bps: Any, runs: list[Run]) -> None:
    """Of both runs, and on all ranks; then both are closed."""
    same(*runs)
    kept = runs[0].optimizer.state_dict()["byteps_like"]["parameters"]
    factors = [memory["factor"] for memory in kept.values() if "factor" in memory]
    assert factors
    for factor in factors:
        same_everywhere(bps, factor)
    same_everywhere(bps, flat(runs[0].model))
    for run in runs:
        run.optimizer.close()


def by_factors(bps: Any, rank: int, size: int) -> None:
    """After the first step none waits."""
    options: list[dict[str, Any]] = [
        {}, {"op": bps.Sum}, {"gradient_predivide_factor": 3.0},
        {"compression": {"*weight": bps.Compression.powersgd(3, feedback=False)}},
        {"compression": {"0.weight": "powersgd:rank=1", "2.weight": "powersgd:rank=2", "4.*": "onebit"}},
    ]  # fmt: skip
    for each in [*options, *([{"route": "allreduce"}] if size > 1 else [])]:
        runs = pairs(bps, **each)
        assert train(runs, rank, size, range(5)) == [0]
        all_same(bps, runs)


def of_both_types(bps: Any, rank: int, size: int) -> None:
    """A bucket for each type of elements, so two rounds after which others come."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = odd(), mlp(torch.float32, (5, 31, 29, 5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x).float())  # type: ignore[no-any-return]

    def loss(model: nn.Module, step: int, rank: int, size: int) -> torch.Tensor:
        x, y = (share(part, rank, size) for part in batch(step))
        return nn.functional.mse_loss(model(x).double(), y)

    runs = pairs(bps, Both)
    assert train(runs, rank, size, range(5), loss) == [0]
    all_same(bps, runs)


def large_enough_to_be_cut(bps: Any, rank: int, size: int) -> None:
    """Each factor in several tensors, with finer partitions towards the input. Partial sums differ then."""
    runs = pairs(bps, lambda: mlp(torch.float64, (20, 2400, 20, 2100, 5)), compression={"*weight": "powersgd:rank=4"})
    train(runs, rank, size, range(3))
    for run in runs:
        run.optimizer.synchronize() if run is runs[0] else None
    torch.testing.assert_close(flat(runs[0].model), flat(runs[1].model), rtol=1e-9, atol=1e-12)
    same_everywhere(bps, flat(runs[0].model))


def accumulation(bps: Any, rank: int, size: int) -> None:
    runs = pairs(bps, make=OPTIMIZERS["Adam"], backward_passes_per_step=3)
    assert train(runs, rank, size, range(4), passes=3) == [0]
    all_same(bps, runs)


def with_changing_rates(bps: Any, rank: int, size: int) -> None:
    """Residuals are rescaled when rates change, though they are still to be made by then."""
    runs = pairs(bps)
    for step in range(5):
        for run in runs:
            for group in run.optimizer.param_groups:
                group["lr"] *= 0.7
        train(runs, rank, size, range(step, step + 1))
    all_same(bps, runs)


def unused(bps: Any, rank: int, size: int) -> None:
    """By all ranks, and by some: modules that a forward does not come to."""

    def loss(model: nn.Module, step: int, rank: int, size: int) -> torch.Tensor:
        x, y = (share(part, rank, size) for part in batch(step))
        used = ["12", "1", "12" if rank == 0 else "2", "2", "1", "12"][step % 6]
        return (model(x, used) - y).square().mean()

    runs = pairs(bps, Branches)
    assert train(runs, rank, size, range(9), loss) == [0]
    all_same(bps, runs)


def shared_reused_and_read(bps: Any, rank: int, size: int) -> None:
    runs = pairs(bps, lambda: fill(Tied().double()), OPTIMIZERS["Adam"], compression={"*weight": "powersgd:rank=1"})
    train(runs, rank, size, range(6))
    all_same(bps, runs)


def states_in_flight(bps: Any, rank: int, size: int) -> None:
    """A checkpoint between two steps is complete; what it goes on from is, too."""
    runs = pairs(bps)
    train(runs, rank, size, range(3))
    kept = [copy.deepcopy((run.model.state_dict(), run.optimizer.state_dict())) for run in runs]
    torch.testing.assert_close(kept[0], kept[1], rtol=0, atol=0)
    assert any(memory["residual"].any() for memory in kept[0][1]["byteps_like"]["parameters"].values())
    train(runs, rank, size, range(3, 5))
    for run, (weights, state) in zip(runs, kept, strict=True):
        run.model.load_state_dict(weights)
        run.optimizer.load_state_dict(copy.deepcopy(state))
    train(runs, rank, size, range(5, 7))
    for run in runs:
        bps.broadcast_parameters(list(run.model.named_parameters()))
        bps.broadcast_optimizer_state(run.optimizer)
    train(runs, rank, size, range(7, 9))
    all_same(bps, runs)


def groups_come_and_go(bps: Any, rank: int, size: int) -> None:
    """Parameters leave the optimizer while gradients are in flight: what is remembered of the others is that after it.
    Of codecs, too."""
    for rules in (WEIGHTS, {"*weight": bps.Compress("onebit", feedback=True)}):
        runs = pairs(bps, make=OPTIMIZERS["SGD"], compression=rules)
        extras = {id(run.model): fill(nn.Linear(24, 24, bias=False).double()) for run in runs}

        def loss(model: nn.Module, step: int, rank: int, size: int, extras: Any = extras) -> torch.Tensor:
            return plain_loss(model, step, rank, size) + extras[id(model)](torch.ones(24).double()).square().sum()

        train(runs, rank, size, range(2))
        for run in runs:
            run.optimizer.add_param_group({"params": list(extras[id(run.model)].parameters())})
        train(runs, rank, size, range(2, 5), loss)
        for run in runs:
            run.optimizer.param_groups.pop()
        train(runs, rank, size, range(5, 8))
        same(*runs)
        same_everywhere(bps, flat(runs[0].model))


def uneven_batches(bps: Any, rank: int, size: int) -> None:
    """Ranks run out of batches one after the other, with factors in flight, and join()."""
    runs = pairs(bps, make=OPTIMIZERS["Adam"])
    for run in runs:
        run.train(rank, size, range(3 + rank))
        last = bps.join()
        bps.broadcast_parameters(list(run.model.named_parameters()), root_rank=last)
        bps.broadcast_optimizer_state(run.optimizer, root_rank=last)
        run.train(rank, size, range(6, 8))
    all_same(bps, runs)


def thrown_away_before_step(bps: Any, rank: int, size: int) -> None:
    """zero_grad() in place of step(), on all ranks: what PowerSGD remembers is forgotten."""
    runs = pairs(bps)
    train(runs, rank, size, range(3))
    for run in runs:
        plain_loss(run.model, 9, rank, size).backward()
    train(runs, rank, size, range(3, 5))
    all_same(bps, runs)


def in_an_order_of_their_own(bps: Any, rank: int, size: int) -> None:
    """Each rank asks for its modules in another order, and one by one."""
    runs = pairs(bps)
    for step in range(4):
        train(runs, rank, size, range(step, step + 1))
        layers = [layer for layer in runs[0].model if isinstance(layer, nn.Linear)]
        turned = layers[rank % len(layers) :] + layers[: rank % len(layers)]
        for layer in turned if step % 2 else reversed(turned):
            layer(torch.ones(1, layer.in_features, dtype=torch.float64))
    all_same(bps, runs)


def while_others_wait_for_something_else(bps: Any, rank: int, size: int) -> None:
    """Rank 0 needs the updates of the last step at once; the others first meet it elsewhere."""
    runs = pairs(bps)
    train(runs, rank, size, range(3))
    if rank == 0:
        runs[0].model.state_dict()
    bps.allreduce(torch.ones(3), name="elsewhere")
    all_same(bps, runs)


def two_optimizers(bps: Any, rank: int, size: int) -> None:
    """Of one model, both with factors in flight; ranks ask for their layers in another order."""
    models = []
    for crosses in (True, False):
        model = odd()
        owners = [
            bps.DistributedOptimizer(
                OPTIMIZERS["momentum"](part.parameters()), part.named_parameters(prefix), cross_barrier=crosses,
                model=model, compression=WEIGHTS,
            )
            for prefix, part in (("early", model[:3]), ("late", model[3:]))
        ]  # fmt: skip
        for step in range(5):
            for owner in owners:
                owner.zero_grad()
            plain_loss(model, step, rank, size).backward()
            for owner in owners:
                owner.step()
            order = (model[0], model[6]) if rank % 2 else (model[6], model[0])
            for layer in order:
                layer(torch.ones(1, layer.in_features, dtype=torch.float64))
        for owner in owners:
            owner.close()
        models.append(model)
    assert torch.equal(flat(models[0]), flat(models[1]))
    same_everywhere(bps, flat(models[0]))


def a_rank_drops_all(bps: Any, rank: int, size: int) -> None:
    """After the last step the other ranks drop model and optimizer at once; rank 0 still gets its last update."""
    runs = pairs(bps)
    train(runs, rank, size, range(3))
    expected = flat(runs[1].model).clone()
    if rank == 0:
        runs[0].model.state_dict()
        assert torch.equal(flat(runs[0].model), expected)
    runs.clear()
    gc.collect()
    bps.barrier()


def the_model_outlives_the_optimizer(bps: Any, rank: int, size: int) -> None:
    models = []
    for run in pairs(bps):
        run.train(rank, size, range(3))
        models.append(run.model)
        del run
    outputs = [model(batch(0)[0]) for model in models]
    assert torch.equal(*outputs)
    assert torch.equal(flat(models[0]), flat(models[1]))


SCENARIOS = [
    by_factors, of_both_types, large_enough_to_be_cut, accumulation, with_changing_rates, unused,
    shared_reused_and_read, states_in_flight, groups_come_and_go, uneven_batches, thrown_away_before_step,
    in_an_order_of_their_own, while_others_wait_for_something_else, two_optimizers, a_rank_drops_all,
    the_model_outlives_the_optimizer,
]  # fmt: skip
"""Bodies that need nothing but (bps, rank, size)."""


def cleared_against_step(bps: Any, rank: int, size: int) -> None:
    """One rank throws its gradients away: no rank updates anything, and all are told; then all go on."""
    (run, _) = pairs(bps)
    run.train(rank, size, range(2))
    run.optimizer.synchronize()
    before = flat(run.model).clone()
    plain_loss(run.model, 2, rank, size).backward()
    if rank == 0:
        raises(bps.MismatchError, run.optimizer.zero_grad, "same calls")
    else:
        run.optimizer.step()
        raises(bps.MismatchError, lambda: run.model(batch(0)[0].double()), "same calls")
    assert torch.equal(flat(run.model), before)
    run.train(rank, size, range(3, 5))
    run.optimizer.synchronize()
    same_everywhere(bps, flat(run.model))
