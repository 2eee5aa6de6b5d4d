"""Who is told that a distributed optimizer has stepped."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import torch
from torch.utils.hooks import RemovableHandle

_after_step: dict[int, Callable[[torch.optim.Optimizer], None]] = OrderedDict()


def after_steps(call: Callable[[torch.optim.Optimizer], None]) -> RemovableHandle:
    """Calls `call` with a distributed optimizer whenever its step() has returned.

    That is once, however many steps of the plain optimizer it was made of.
    """
    handle = RemovableHandle(_after_step)
    _after_step[handle.id] = call
    return handle


def tell(optimizer: torch.optim.Optimizer) -> None:
    """`optimizer` has stepped."""
    for call in list(_after_step.values()):
        call(optimizer)
