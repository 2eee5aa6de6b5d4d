"""A step of an optimizer as a record: from the same state, its hyper-parameters and gradients give the same step.

The gradients are those that the plain optimizer sees: averaged over the ranks, clipped, unscaled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.optimizer.distributed import DistributedOptimizerMixin
from byteps_like.torch.optimizer.twin import DistributedTwin

Record = dict[str, Any]


def is_repeatable(optimizer: torch.optim.Optimizer) -> bool:
    """Whether each rank makes whole steps with gradients that are the same on all: not with shares of the state, with
    steps that end in the next forward, or where servers make them."""
    if not isinstance(optimizer, DistributedTwin):
        return True
    return type(optimizer).__mro__[1] is DistributedOptimizerMixin


def before_steps(optimizer: torch.optim.Optimizer, call: Callable[[Record | None], None]) -> RemovableHandle:
    """`call` gets each step of `optimizer`, before it is made, as long as the handle is not removed; None for one that
    can't be repeated. What is in the record changes with the next backward."""

    def hook(_: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        closures = [*args[1:], *kwargs.values()]  # the first one is the optimizer
        call(_record(optimizer) if all(one is None for one in closures) else None)

    return optimizer.register_step_pre_hook(hook)


def repeat(optimizer: torch.optim.Optimizer, record: Record) -> None:
    """Makes that step. Raises InvalidArgumentError if it is another optimizer's, and what its step raises."""
    groups, gradients = record["groups"], record["gradients"]
    parameters = _parameters(optimizer)
    if (len(groups), len(gradients)) != (len(optimizer.param_groups), len(parameters)):
        raise InvalidArgumentError(f"a step of {len(gradients)} parameters, and this optimizer has {len(parameters)}")
    for group, values in zip(optimizer.param_groups, groups, strict=True):
        group.update(values)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = None if gradient is None else gradient.to(parameter.device)
    try:
        with optimizer.skip_synchronize() if isinstance(optimizer, DistributedOptimizerMixin) else nullcontext():
            optimizer.step()
    finally:
        for parameter in parameters:
            parameter.grad = None


def _record(optimizer: torch.optim.Optimizer) -> Record | None:
    gradients = [parameter.grad for parameter in _parameters(optimizer)]
    sparse = any(gradient is not None and gradient.layout is not torch.strided for gradient in gradients)
    if sparse or getattr(optimizer, "grad_scale", None) is not None:
        return None
    groups = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    return {"groups": groups, "gradients": gradients}


def _parameters(optimizer: torch.optim.Optimizer) -> Sequence[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
