"""Tensors that are not in this host's memory: copied to pinned memory, and their results copied back.

Works for any kind of device and any number of ranks per device, with the checks and errors of CPU tensors. The copies
go through the caller's current stream; a call returns when the inputs are on the host.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from byteps_like.collectives.api import Operation
from byteps_like.torch.group_tensors import usable
from byteps_like.torch.work import Followed, Work

StagedCall = Callable[..., Work]


def device_of(arguments: tuple[Any, ...]) -> torch.device | None:
    """Device of the first tensor in nested lists of tensors; None if there is none."""
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            return argument.device
        if isinstance(argument, list | tuple):
            found = device_of(tuple(argument))
            if found is not None:
                return found
    return None


def staged(call: StagedCall, arguments: tuple[Any, ...], named: dict[str, Any]) -> Work:
    """`call(*arguments)` on copies in host memory. What it writes, its first argument, is copied back after it.

    Raises InvalidArgumentError for a tensor that `call` would refuse.
    """
    stage = _Stage(call.__name__)
    copies = [stage.copied(argument, output=number == 0) for number, argument in enumerate(arguments)]
    stage.synchronize()
    work = call(*copies, **named)
    if call.__name__ == "send":
        return work
    return stage.followed(work)


class _Stage:
    """The copies of one call."""

    def __init__(self, operation: str) -> None:
        self._operation = operation
        self._outputs: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._devices: set[torch.device] = set()

    def copied(self, argument: Any, output: bool) -> Any:
        """`argument`, with each tensor in it replaced by its copy."""
        if isinstance(argument, list | tuple):
            return [self.copied(item, output) for item in argument]
        if not isinstance(argument, torch.Tensor):
            return argument
        usable(argument, self._operation, "tensor")
        copy = self._copy(argument)
        if output:
            self._outputs.append((argument, copy))
        return copy

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        self._devices.add(tensor.device)
        pinned = tensor.device.type == "cuda"
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned)
        return copy.copy_(tensor.detach(), non_blocking=pinned)

    def synchronize(self) -> None:
        """Blocks until the copies are there."""
        for device in self._devices:
            if device.type != "cpu":
                torch.accelerator.current_stream(device).synchronize()

    def followed(self, work: Work) -> Work:
        """`work`, after which the results are copied back."""
        main = threading.get_ident()

        def land() -> None:
            for tensor, copy in self._outputs:
                tensor.detach().copy_(copy, non_blocking=True)
            if threading.get_ident() != main:
                self.synchronize()  # a callback's thread has a stream of its own, which nobody else waits for

        operation: Operation = Followed(work.operation, land)
        return Work(operation, [tensor for tensor, _ in self._outputs], (work, self._outputs), work.callbacks)
