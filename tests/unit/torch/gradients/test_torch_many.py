"""Models of many small gradients: what a step costs for each of them, counted in Python calls."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import byteps_like.torch as bps
from byteps_like.torch.job import runtime
from byteps_like.worker.local import LocalWorker

PACKAGE = str(Path(bps.__file__).parents[1])
COUNTED, READY = 2, 3
"""Calls for each gradient: the hook and the round that counts it, and in the last pass the bucket that takes it."""


class Trained:
    """`count` parameters, each of which takes its own number for its gradient, and an optimizer that averages them."""

    def __init__(self, count: int, **options: Any) -> None:
        self.parameters = [torch.nn.Parameter(torch.zeros(3)) for _ in range(count)]
        plain = torch.optim.SGD(self.parameters, lr=1.0)
        named = [(f"p{index}", parameter) for index, parameter in enumerate(self.parameters)]
        self.optimizer = bps.DistributedOptimizer(plain, named, **options)
        self.passes = options.get("backward_passes_per_step", 1)

    def backward(self) -> None:
        """One pass."""
        sum((number * one.sum() for number, one in enumerate(self.parameters, 1)), torch.zeros(())).backward()

    def step(self) -> None:
        """One step."""
        self.optimizer.zero_grad()
        for _ in range(self.passes):
            self.backward()
        self.optimizer.step()


def double(parameter: torch.Tensor) -> None:
    """A user's hook."""
    assert parameter.grad is not None
    parameter.grad.mul_(2.0)


def calls_of(work: Callable[[], None]) -> int:
    """How many calls of Python functions of the package `work` makes."""
    found = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal found
        found += event == "call" and frame.f_code.co_filename.startswith(PACKAGE)

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.parametrize(
    "options",
    [{}, {"compression": bps.Compression.fp16}, {"gradient_predivide_factor": 2.0}, {"op": bps.Sum}],
    ids=["plain", "fp16", "predivide", "sum"],
)
def test_a_gradient_more_costs_a_step_as_many_calls_as_its_hook_makes(options: dict[str, Any]) -> None:
    with runtime.bound(LocalWorker()):
        few, many = Trained(20, **options), Trained(50, **options)
        for trained in (few, many):
            trained.step()
            trained.step()
        assert calls_of(many.step) - calls_of(few.step) == READY * 30


def test_a_gradient_of_a_pass_that_is_not_the_last_costs_less() -> None:
    with runtime.bound(LocalWorker()):
        few, many = (Trained(count, backward_passes_per_step=3) for count in (20, 50))
        for trained in (few, many):
            trained.step()
            trained.step()
        assert calls_of(many.step) - calls_of(few.step) == (2 * COUNTED + READY) * 30


def test_gradients_that_wait_for_the_others_of_their_partition_are_averaged_all_the_same() -> None:
    with runtime.bound(LocalWorker()):
        trained = Trained(5)
        unused = torch.nn.Parameter(torch.zeros(3))
        trained.optimizer.add_param_group({"params": [unused]})
        for steps in (1, 2, 3):
            trained.step()
            assert unused.grad is None
            for number, parameter in enumerate(trained.parameters, 1):
                assert torch.equal(parameter.detach(), torch.full((3,), -1.0 * steps * number))


def test_a_gradient_that_is_changed_before_it_is_copied_is_an_error_as_any_other() -> None:
    """By a hook that runs after ours, of a gradient that waits for the others of its partition."""
    with runtime.bound(LocalWorker()):
        trained = Trained(3)
        trained.step()
        trained.parameters[0].register_post_accumulate_grad_hook(double)
        trained.optimizer.zero_grad()
        trained.backward()
        with pytest.raises(bps.InvalidArgumentError, match="'p0' was changed"):
            trained.optimizer.step()


def test_a_gradient_that_is_replaced_while_it_waits_for_the_others_is_an_error() -> None:
    with runtime.bound(LocalWorker()):
        trained = Trained(3)
        trained.step()
        trained.optimizer.zero_grad()
        trained.parameters[1].sum().backward()
        trained.parameters[1].grad = torch.ones(3)
        trained.parameters[0].sum().backward()
        trained.parameters[2].sum().backward()
        with pytest.raises(bps.InvalidArgumentError, match="'p1' was changed"):
            trained.optimizer.synchronize()


def test_the_gradient_of_a_parameter_is_the_same_tensor_in_each_step() -> None:
    with runtime.bound(LocalWorker()):
        trained = Trained(3)
        trained.step()
        before = [parameter.grad for parameter in trained.parameters]
        trained.step()
        assert all(one.grad is other for one, other in zip(trained.parameters, before, strict=True))


@pytest.mark.parametrize("compression", [None, bps.Compression.fp16, "powersgd:rank=1"], ids=str)
def test_gradients_of_a_backward_that_keeps_its_graph_are_averaged_without_a_graph(compression: Any) -> None:
    with runtime.bound(LocalWorker()):
        parameter = torch.nn.Parameter(torch.arange(6.0).reshape(3, 2))
        plain = torch.optim.SGD([parameter], lr=0.25)
        optimizer = bps.DistributedOptimizer(plain, [("p", parameter)], compression=compression)
        for _ in range(2):
            optimizer.zero_grad()
            (parameter**2).sum().backward(create_graph=True)
            optimizer.step()
        expected = torch.arange(6.0).reshape(3, 2) / 4
        torch.testing.assert_close(parameter.detach(), expected, rtol=0.5 if compression else 0.0, atol=0.0)
