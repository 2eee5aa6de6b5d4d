"""What can't cross the barrier, what goes wrong while updates are in flight, and what each rank is told."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.scenarios.checks import raises, same_everywhere
from tests.scenarios.crossing.models import OPTIMIZERS, Run, Tied, plain_loss
from tests.scenarios.models import batch, fill, flat, mlp


def refused_at_construction(bps: Any, rank: int, size: int) -> None:
    model = mlp()
    plain = torch.optim.LBFGS(list(model.parameters()))
    raises(bps.InvalidArgumentError, lambda: bps.CrossBarrier(model, plain), "LBFGS")
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    raises(bps.InvalidArgumentError, lambda: bps.CrossBarrier(model, plain, op=bps.Adasum), "Adasum")
    raises(bps.InvalidArgumentError, lambda: bps.DistributedOptimizer(plain, cross_barrier=True), "model=")
    twice = bps.DistributedOptimizer(plain)
    raises(bps.InvalidArgumentError, lambda: bps.CrossBarrier(model, twice), "plain")


def refused_in_step(bps: Any, rank: int, size: int) -> None:
    """Closures, step hooks, a GradScaler; the optimizer goes on without them."""
    run = Run(bps, True, OPTIMIZERS["momentum"], mlp())
    run.train(rank, size, range(2))
    raises(bps.InvalidArgumentError, lambda: run.optimizer.step(lambda: 0.0), "closure")
    hook = run.optimizer.register_step_post_hook(lambda *_: None)
    plain_loss(run.model, 2, rank, size).backward()
    raises(bps.InvalidArgumentError, run.optimizer.step, "step hooks")
    hook.remove()
    run.optimizer.step()
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(plain_loss(run.model, 3, rank, size)).backward()
    raises(bps.InvalidArgumentError, lambda: scaler.step(run.optimizer), "GradScaler", "bfloat16")
    run.train(rank, size, range(3, 5))
    run.optimizer.synchronize()
    same_everywhere(bps, flat(run.model))


class Counting(torch.optim.SGD):
    """Counts its steps where all parameters share the count."""

    def __init__(self, params: Any, where: str) -> None:
        super().__init__(params, lr=0.1)
        self.where, self.count = where, 0

    def step(self, closure: Any = None) -> None:
        if self.where == "attribute":
            self.count += 1
        elif self.where == "group":
            self.param_groups[0]["count"] = self.param_groups[0].get("count", 0) + 1
        else:
            self.state["all"] = {"count": 1}
        super().step()


def optimizers_with_shared_state(bps: Any, rank: int, size: int) -> None:
    for where, word in (("attribute", "count"), ("group", "param_groups"), ("state", "'all'")):
        run = Run(bps, True, lambda p, where=where: Counting(p, where), mlp())
        plain_loss(run.model, 0, rank, size).backward()
        raises(bps.InvalidArgumentError, run.optimizer.step, "Counting", word, "independently")


def used_behind_its_modules_back(bps: Any, rank: int, size: int) -> None:
    """A parameter that is first read otherwise than before while its update is in flight: told, then waited for."""

    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.other = nn.Linear(20, 5), nn.Linear(20, 5)

        def forward(self, x: torch.Tensor, reads: bool) -> torch.Tensor:
            return self.layer(x) + (self.other.bias if reads else 0.0)

    run = Run(bps, True, OPTIMIZERS["momentum"], fill(Late().double()))

    def backward(reads: bool) -> None:
        run.optimizer.zero_grad()
        run.model(batch(0)[0], reads).square().mean().backward()

    for reads in (False, False):
        backward(reads)
        run.optimizer.step()
    raises(bps.InvalidArgumentError, lambda: backward(True), "'other.bias'", "synchronize()")
    run.optimizer.zero_grad()
    for _ in range(3):
        backward(True)
        run.optimizer.step()
    run.optimizer.synchronize()
    same_everywhere(bps, flat(run.model))


def cleared_against_step(bps: Any, rank: int, size: int) -> None:
    """One rank throws its gradients away: no rank updates anything, and all are told."""
    run = Run(bps, True, OPTIMIZERS["momentum"], mlp())
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


def changed_in_flight(bps: Any, rank: int, size: int) -> None:
    run = Run(bps, True, OPTIMIZERS["momentum"], fill(Tied().double()))
    run.train(rank, size, range(2))
    plain_loss(run.model, 2, rank, size).backward()
    run.model.last.weight.grad.mul_(2)
    raises(bps.InvalidArgumentError, run.optimizer.step, "last.weight", "synchronize()")


def changed_on_one_rank(bps: Any, rank: int, size: int) -> None:
    """The other ranks hear of it in the next forward. Rounds are counted alike, by which codecs and settings change."""
    _changed_on_one_rank(bps, rank, size)
    _changed_on_one_rank(bps, rank, size, compression={"*weight": "powersgd:rank=2"})


def _changed_on_one_rank(bps: Any, rank: int, size: int, **options: Any) -> None:
    run = Run(bps, True, OPTIMIZERS["momentum"], fill(Tied().double()), **options)
    run.train(rank, size, range(2))
    run.optimizer.synchronize()
    before = flat(run.model).clone()
    plain_loss(run.model, 2, rank, size).backward()
    if rank == 0:
        run.model.last.weight.grad.mul_(2)
        raises(bps.InvalidArgumentError, run.optimizer.step, "last.weight", "synchronize()")
    else:
        run.optimizer.step()
        raises(bps.MismatchError, lambda: run.model(batch(0)[0].double()), "changed in flight")
    assert torch.equal(flat(run.model), before)
    run.optimizer.zero_grad()
    run.train(rank, size, range(3, 5))
    run.optimizer.synchronize()
    same_everywhere(bps, flat(run.model))
    reducer = run.optimizer._distribution.reducer
    reducer.landed()
    assert len(set(bps.allgather_object(reducer.codecs.rounds))) == 1
    run.optimizer.close()


ALL_SIZES = [
    refused_at_construction, refused_in_step, optimizers_with_shared_state,
    used_behind_its_modules_back, changed_in_flight,
]  # fmt: skip
MANY = [cleared_against_step, changed_on_one_rank]
"""For two ranks or more."""
