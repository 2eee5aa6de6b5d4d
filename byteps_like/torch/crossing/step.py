"""The plain optimizer's own step over some parameters, with the hyperparameters as they were when step() was called."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from byteps_like.errors import InvalidArgumentError

Group = dict[str, Any]

_NOT_ALONE = ("LBFGS",)
"""torch's optimizers that can't update one parameter without the others."""


class PartialStep:
    """Steps of `optimizer` that update only some parameters. `step` is the plain optimizer's own."""

    def __init__(self, optimizer: torch.optim.Optimizer, step: Callable[[], Any]) -> None:
        self._optimizer, self._step = optimizer, step
        self._groups = [_captured(group) for group in optimizer.param_groups]
        self._places = {
            id(parameter): (number, place)
            for number, group in enumerate(optimizer.param_groups)
            for place, parameter in enumerate(group["params"])
        }

    def __call__(self, parameters: Iterable[torch.Tensor]) -> None:
        """Updates `parameters`, whose gradients are there; what has left the groups since then is left alone."""
        chosen = sorted(self._places[id(item)] for item in parameters if id(item) in self._places)
        if not chosen:
            return
        whole = self._optimizer.param_groups
        self._optimizer.param_groups = [
            _restricted(group, [place for owner, place in chosen if owner == number])
            for number, group in enumerate(self._groups)
        ]
        try:
            self._step()
        finally:
            self._optimizer.param_groups = whole


def _captured(group: Group) -> Group:
    """A copy whose hyperparameters later changes don't reach; learning rates may be tensors."""
    copy = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in group.items()}
    return copy | {"params": list(group["params"])}


def _restricted(group: Group, places: list[int]) -> Group:
    lists: Group = {
        name: [group[name][place] for place in places] for name in ("params", "param_names") if name in group
    }
    return {**group, **lists}


def check_class(optimizer: torch.optim.Optimizer) -> None:
    """Raises InvalidArgumentError for optimizers of torch that can't update parameters one by one."""
    for cls in type(optimizer).__mro__:
        if cls.__module__.startswith("torch.optim") and cls.__name__ in _NOT_ALONE:
            raise InvalidArgumentError(
                f"cross_barrier=True: {cls.__name__} can't update one parameter without the others' gradients; leave"
                " cross_barrier out"
            )


def check_hooks(optimizer: torch.optim.Optimizer) -> None:
    """Raises InvalidArgumentError if there are hooks that want to see all gradients before, or weights after a step."""
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        raise InvalidArgumentError(
            "cross_barrier=True: this optimizer has step hooks, but step() neither has all gradients before it nor all"
            " updated weights after it; remove the hooks, or leave cross_barrier out"
        )


@contextmanager
def checked(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Around a whole step: raises InvalidArgumentError if more than parameters and their own state has changed by it.

    An optimizer that counts its steps in the group, say, would count each parameter's.
    """
    groups = [_captured(group) for group in optimizer.param_groups]
    numbers = _numbers(optimizer)
    yield
    changed = [name for name, value in _numbers(optimizer).items() if numbers.get(name, value) != value]
    for before, after in zip(groups, optimizer.param_groups, strict=True):
        changed += [f"param_groups[...][{name!r}]" for name in after if _differ(before.get(name), after[name])]
    changed += [f"state[{key!r}]" for key in optimizer.state if not isinstance(key, torch.Tensor)]
    if changed:
        raise InvalidArgumentError(
            f"cross_barrier=True: step() of {type(optimizer).__name__} changes {changed[0]}, so it doesn't update"
            " parameters independently of each other; leave cross_barrier out"
        )


def _numbers(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    attributes = optimizer.__dict__.items()
    return {name: value for name, value in attributes if isinstance(value, int | float) and name != "_opt_called"}


def _differ(before: Any, after: Any) -> bool:
    if isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor):
        return not torch.equal(before, after)
    return type(before) is not type(after) or (not isinstance(after, list) and bool(before != after))
