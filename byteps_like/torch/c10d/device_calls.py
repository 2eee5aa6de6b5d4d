"""Calls of a process group with tensors on a device: they go through page-locked memory of this host.

A method of the group is run at once on host tensors that stand for the device's, so that all its checks are made and
raised there; what it asks of its lane is launched when the inputs have come down (see passage). Launches keep the order
of calls, also beside calls with tensors on the CPU.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from byteps_like.collectives.api import CallOptions, Group
from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.c10d.futures import callback_depth
from byteps_like.torch.c10d.tensors import is_premultiplied, usable
from byteps_like.torch.device import devices
from byteps_like.torch.device.api import Device
from byteps_like.torch.device.staged_copy import Copy, Stage, StagedCopy

_READ = ("allreduce", "broadcast", "reduce", "send")
"""Calls that read their first argument; the others only write to it, but"""
_LEFT = ("send",)
"""for these, which only read."""


class _Thread(threading.local):
    load: Load | None = None


_thread = _Thread()


class Load:
    """The tensors of one call, and what stands for them in this host's memory."""

    def __init__(self, stage: Stage, operation: str) -> None:
        self.stage, self.operation = stage, operation
        self._down: list[Copy] = []
        self._up: list[Copy] = []
        self._tasks: list[Callable[[], object]] = []
        self._originals: dict[int, torch.Tensor] = {}

    def taken(self, argument: Any, first: bool) -> Any:
        """`argument`, with each tensor in it replaced by the one that stands for it. Raises InvalidArgumentError."""
        if isinstance(argument, list | tuple):
            return [self.taken(item, first) for item in argument]
        if not isinstance(argument, torch.Tensor):
            return argument
        device = devices.of(argument)
        if device is None:
            return self._itself(argument)
        if device is not self.stage.device:
            raise InvalidArgumentError(
                f"{self.operation}: tensors are on {self.stage.device.name} and on {argument.device}; pass those of one"
                " device, or of the CPU"
            )
        data = usable(argument, self.operation, "tensor").data  # whose version is its own: copies are made at any time
        copy = self.stage.device.empty(data)
        self._originals[id(copy)] = argument
        if not data.numel():
            return copy
        if not first or self.operation in _READ:
            self._down.append((copy, data))
        if first and self.operation not in _LEFT:
            self._up.append((data, copy))
        return copy

    def _itself(self, tensor: torch.Tensor) -> torch.Tensor:
        """One of this host: the core works in its own memory."""
        self._originals[id(tensor)] = tensor
        return tensor

    def originals(self, copies: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors that `copies` stand for."""
        return [self._originals[id(copy)] for copy in copies]

    def later(self, task: Callable[[], object]) -> None:
        """To be done when the inputs have come down, before the launch."""
        self._tasks.append(task)

    def start(self, call: Callable[..., Any], *arguments: Any) -> StagedCopy:
        """Starts what the method asks of its lane. Nobody waits for the launch, so it mustn't block."""
        plain = [item._replace(waits=False) if isinstance(item, CallOptions) else item for item in arguments]

        def launch() -> Any:
            for task in self._tasks:
                task()
            return call(*plain)

        return self.stage.start(self._down, self._up, launch)


class _Lane:
    """A lane whose calls are started with a load. See collectives.api.Group."""

    def __init__(self, lane: Group, load: Load) -> None:
        self._lane, self._load = lane, load

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._lane, name)
        return partial(self._load.start, found) if callable(found) else found


class DeviceCalls:
    """Those of one group. Thread-safe."""

    def __init__(self) -> None:
        self._stages: dict[tuple[str, int], Stage] = {}
        self._lock = threading.Lock()

    def run(self, device: Device, method: Callable[..., Any], arguments: Sequence[Any], named: dict[str, Any]) -> Any:
        """`method` with tensors on `device`; its first argument is what it writes, and maybe reads.

        Raises InvalidArgumentError as the method does, and while a CUDA graph is captured.
        """
        devices.check_not_capturing(device, method.__name__)
        load = Load(self._stage(device), method.__name__)
        copies = [load.taken(argument, number == 0) for number, argument in enumerate(arguments)]
        _thread.load = load
        try:
            return method(*copies, **named)
        finally:
            _thread.load = None

    def _stage(self, device: Device) -> Stage:
        key = (device.name, callback_depth())
        with self._lock:
            if key not in self._stages:
                self._stages[key] = Stage(device)
            return self._stages[key]

    def lane(self, lane: Group) -> Any:
        """`lane` for a call of this thread: within `run` it is started with the load; else it comes after all that is
        still to be launched, for which it blocks."""
        if _thread.load is not None:
            return _Lane(lane, _thread.load)
        for stage in list(self._stages.values()):
            stage.settle()
        return lane

    def close(self) -> None:
        """No more calls; waits for those that are being launched, for a bounded time."""
        for stage in self._stages.values():
            stage.close()


def current_load() -> Load | None:
    """That of the call that this thread is making."""
    return _thread.load


def premultiplied(opts: Any, tensor: torch.Tensor) -> torch.Tensor:
    """`tensor`, or its product with the factor of a PREMUL_SUM."""
    if not is_premultiplied(opts):
        return tensor
    op = getattr(opts, "reduceOp", opts)
    load = current_load()
    if load is None:
        return torch.mul(tensor, op.factor)
    product = torch.empty_like(tensor)
    load.later(lambda: torch.mul(tensor, op.factor, out=product))
    return product


def first_tensor(arguments: Any) -> torch.Tensor | None:
    """In nested lists of tensors; None if there is none."""
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            return argument
        if isinstance(argument, list | tuple):
            found = first_tensor(argument)
            if found is not None:
                return found
    return None
