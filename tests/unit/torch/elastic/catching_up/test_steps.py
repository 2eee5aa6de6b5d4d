"""Steps that are made again elsewhere, bit by bit those of the optimizer that has made them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch

import byteps_like.torch as bps
from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.elastic.catching_up.steps import before_steps, is_repeatable, repeat
from byteps_like.torch.job.trees import flatten, unflatten
from byteps_like.torch.optimizer.twin import DistributedTwin

Make = Callable[[Any], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw, lr as a tensor": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01)),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "groups": lambda p: torch.optim.SGD([{"params": p[:1], "lr": 0.5}, {"params": p[1:], "momentum": 0.5}], lr=0.1),
}


def model() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3), torch.nn.Linear(4, 4))


def travelled(record: Any) -> Any:
    """As it comes out at the other side."""
    text, tensors = flatten(record)
    tree, places = unflatten(text)
    for place, tensor in zip(places, tensors, strict=True):
        place.copy_(tensor)
    return tree


def train(ours: torch.nn.Module, optimizer: Any, seen: Callable[[Any], None], steps: int = 5) -> None:
    """The last layer gets no gradients; rates change from step to step, and gradients are clipped."""
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    handle = before_steps(optimizer, lambda record: seen(None if record is None else travelled(record)))
    torch.manual_seed(2)
    for _ in range(steps):
        optimizer.zero_grad()
        ours[:3](torch.randn(6, 5)).square().sum().backward()  # type: ignore[index]
        distributed = isinstance(optimizer, DistributedTwin)
        if distributed:
            optimizer.synchronize()  # type: ignore[attr-defined]
        torch.nn.utils.clip_grad_norm_(ours.parameters(), 1.0)
        with optimizer.skip_synchronize() if distributed else nullcontext():  # type: ignore[attr-defined]
            optimizer.step()
        schedule.step()
    handle.remove()


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("distributed", [False, True])
def test_steps_are_repeated_bit_by_bit(name: str, distributed: bool) -> None:
    ours, theirs = model(), model()
    one, other = (OPTIMIZERS[name](list(each.parameters())) for each in (ours, theirs))
    records: list[Any] = []
    bps.init()
    try:
        if distributed:
            one, other = bps.DistributedOptimizer(one), bps.DistributedOptimizer(other)
        assert is_repeatable(one)
        train(ours, one, records.append)
        after = {name: tensor.numpy().tobytes() for name, tensor in ours.state_dict().items()}
        with one.skip_synchronize() if distributed else nullcontext():  # type: ignore[attr-defined]
            one.step()
        for record in records:
            repeat(other, record)
    finally:
        bps.shutdown()
    assert len(records) == 5, "the handle was removed"
    assert {name: tensor.numpy().tobytes() for name, tensor in theirs.state_dict().items()} == after
    assert all(parameter.grad is None for parameter in theirs.parameters())


def test_what_cannot_be_repeated() -> None:
    ours = model()
    found: list[Any] = []
    search = torch.optim.LBFGS(ours.parameters())
    before_steps(search, found.append)
    search.step(lambda: ours[:3](torch.ones(1, 5)).square().sum())  # type: ignore[index]
    assert found == [None]

    table = torch.nn.Embedding(4, 2, sparse=True)
    sparse = torch.optim.SGD(table.parameters(), lr=0.1)
    before_steps(sparse, found.append)
    table(torch.tensor([1])).sum().backward()
    sparse.step()
    assert found == [None, None]


def test_kinds_of_optimizers() -> None:
    def made(**options: Any) -> Any:
        ours = model()
        return bps.DistributedOptimizer(torch.optim.SGD(ours.parameters(), lr=0.1), ours.named_parameters(), **options)

    bps.init()
    try:
        assert is_repeatable(made())
        assert not is_repeatable(made(op=bps.Adasum))
        assert not is_repeatable(made(shard="optimizer"))
        ours = model()
        crossing = bps.DistributedOptimizer(
            torch.optim.SGD(ours.parameters(), lr=0.1), ours.named_parameters(), cross_barrier=True, model=ours
        )
        assert not is_repeatable(crossing)
    finally:
        bps.shutdown()


def test_a_step_of_another_model_is_refused() -> None:
    ours, records = model(), []
    one = torch.optim.SGD(ours.parameters(), lr=0.1)
    train(ours, one, records.append, steps=1)
    other = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)
    with pytest.raises(InvalidArgumentError, match="a step of 6 parameters, and this optimizer has 2"):
        repeat(other, records[0])
