"""What every collective method of a process group has in common: torch.compile leaves it alone, and tensors on devices
go by another backend or through this host's memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from byteps_like.torch.c10d.device_calls import first_tensor
from byteps_like.torch.calls.opaque import opaque
from byteps_like.torch.device import devices


def collective(method: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a method of a process group, whose first argument is a tensor or (nested) lists of them, a collective.

    Calls with tensors that are not in this host's memory go to the group's `elsewhere(tensor, call, arguments, named)`.
    """
    opaque(method)

    @functools.wraps(method)
    def call(self: Any, first: Any, *rest: Any, **named: Any) -> Any:
        tensor = first[0] if first.__class__ is list and first else first
        if devices.replaced or not getattr(tensor, "is_cpu", False):
            found = first_tensor((first, *rest))
            if found is not None and devices.of(found) is not None:
                bound = functools.wraps(method)(functools.partial(method, self))
                return self.elsewhere(found, bound, (first, *rest), named)
        return method(self, first, *rest, **named)

    return opaque(call)
