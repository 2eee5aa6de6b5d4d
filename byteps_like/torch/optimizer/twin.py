"""The distributed twin of a user's optimizer: another object of a subclass, with the same `__dict__`.

So state, parameter groups, hooks and what a scheduler has attached are the same before and after, whichever of the two
is asked. Only `_asked`, `_distribution` and `_names` are the twin's own.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch

from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.job.after_steps import tell
from byteps_like.torch.optimizer.parameter_names import ParameterNames


@dataclass(frozen=True)
class Asked:
    """What DistributedOptimizer was asked for, under Horovod's names. See there."""

    op: object
    gradient_predivide_factor: float
    backward_passes_per_step: int
    sparse_as_dense: bool
    process_set: object


class DistributedTwin(torch.optim.Optimizer):
    """Base of the methods that twins add to, or change in, the class of the plain optimizer."""

    _distribution: Any
    _names: ParameterNames
    _asked: Asked

    op = property(lambda self: self._asked.op, doc="As DistributedOptimizer was told; Horovod's, as the next ones.")
    gradient_predivide_factor = property(lambda self: self._asked.gradient_predivide_factor)
    sparse_as_dense = property(lambda self: self._asked.sparse_as_dense)
    process_set = property(lambda self: self._asked.process_set)

    @property
    def backward_passes_per_step(self) -> int:
        """Horovod's. Setting it is `set_backward_passes_per_step`."""
        return self._asked.backward_passes_per_step

    @backward_passes_per_step.setter
    def backward_passes_per_step(self, passes: int) -> None:
        self.set_backward_passes_per_step(passes)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Changes nothing but the attribute: gradients are added up until `step()` is called."""
        check_passes(passes)
        self._asked = replace(self._asked, backward_passes_per_step=passes)

    def block(self, weight: float | None = None) -> None:
        """Does nothing: a block of the mini-batch ends, which matters where servers keep the weights, and don't wait
        for all ranks (docs/how-to/consistency.md)."""

    @property
    def _parameter_names(self) -> dict[torch.Tensor, str]:
        """Horovod's: what each parameter is called."""
        return self._names.by_parameter()

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        raise InvalidArgumentError(_NO_COPY)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise InvalidArgumentError(_NO_COPY)


def check_passes(passes: object) -> None:
    """Raises InvalidArgumentError for what is no number of backwards."""
    if not isinstance(passes, int) or passes < 1:
        raise InvalidArgumentError(f"backward_passes_per_step={passes!r} must be at least 1")


_NO_COPY = (
    "a distributed optimizer can't be copied or pickled, because its gradients are tied to the job; copy or save"
    " its state_dict(), or copy the plain optimizer before it is made distributed"
)


def twin_of(
    optimizer: torch.optim.Optimizer, methods: type[DistributedTwin], distribution: object, names: ParameterNames
) -> DistributedTwin:  # fmt: skip
    """The twin of `optimizer`, with `methods` over its own."""
    plain = type(optimizer)
    members: dict[str, Any] = {
        "__slots__": ("_asked", "_distribution", "_names"),
        "__doc__": plain.__doc__,
        "step": _told(methods.step),
    }
    members["__module__"] = plain.__module__
    cls = type(plain.__name__, (methods, plain), members)
    twin: DistributedTwin = object.__new__(cls)
    twin.__dict__ = optimizer.__dict__
    twin._distribution, twin._names = distribution, names
    if "step" in twin.__dict__:
        twin.__dict__["step"] = _rewrapped(twin, twin.__dict__["step"])
    return twin


def _told(plain_step: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain_step)
    def step(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        result = plain_step(self, *args, **kwargs)
        tell(self)
        return result

    # Else load_state_dict() would have torch wrap it, and hooks, which the plain step runs already, run twice.
    step.hooked = True  # type: ignore[attr-defined]
    return step


def _rewrapped(twin: DistributedTwin, plain_step: Callable[..., Any]) -> Callable[..., Any]:
    """In place of the `step` that a learning-rate scheduler put into the plain optimizer, to see that it is called."""
    reference = weakref.ref(twin)

    @functools.wraps(plain_step)
    def step(*args: Any, **kwargs: Any) -> Any:
        optimizer = reference()
        if optimizer is None:
            return plain_step(*args, **kwargs)
        optimizer.__dict__["_opt_called"] = True
        return type(optimizer).step(optimizer, *args, **kwargs)

    return step
