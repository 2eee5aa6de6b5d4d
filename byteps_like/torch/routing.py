"""What every collective method of a process group has in common: torch.compile leaves it alone, and devices that the
core doesn't reach are served by another backend or by way of host memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from byteps_like.torch.opaque import opaque
from byteps_like.torch.staging import device_of


def collective(method: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a method of a process group, whose first argument is a tensor or (nested) lists of them, a collective.

    Calls with tensors that are not in this host's memory go to the group's `elsewhere(call, arguments, named)`.
    """
    opaque(method)

    @functools.wraps(method)
    def call(self: Any, first: Any, *rest: Any, **named: Any) -> Any:
        tensor = first[0] if first.__class__ is list and first else first
        if not getattr(tensor, "is_cpu", False):
            device = device_of((first, *rest))
            if device is not None and device.type != "cpu":
                bound = functools.wraps(method)(functools.partial(method, self))
                return self.elsewhere(bound, (first, *rest), named)
        return method(self, first, *rest, **named)

    return opaque(call)
