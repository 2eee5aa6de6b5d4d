"""Devices of kinds that have no page-locked memory, or no streams, that we know how to use."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from byteps_like.torch.device.api import Event, Gate, Stream


class PlainDevice:
    """A device of another kind, which has no page-locked memory, or no streams, that we know how to use: every copy
    blocks the host. See Device."""

    ordinal = -1

    def __init__(self, device: torch.device) -> None:
        self.name = str(device)
        self._device = device

    def current(self) -> Stream:
        """What stands for all its streams."""
        return _Blocking(self._device)

    def side(self, up: bool = False) -> Stream:  # noqa: ARG002 - there is but one
        """The same."""
        return self.current()

    def using(self, stream: Stream) -> AbstractContextManager[Any]:  # noqa: ARG002 - there is but one
        """Nothing changes."""
        return contextlib.nullcontext()

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Stream) -> None:  # noqa: ARG002 - the same
        """Blocks until it is done."""
        with torch.inference_mode():
            target.copy_(source)

    def keep(self, tensor: torch.Tensor, stream: Stream) -> None:
        """Its one stream keeps the order."""

    def empty(self, like: torch.Tensor) -> torch.Tensor:
        """Plain memory."""
        return torch.empty(like.shape, dtype=like.dtype, device="cpu")

    def lock(self, address: int, nbytes: int) -> Callable[[], None]:  # noqa: ARG002 - it stays as it is
        """Nothing to do."""
        return lambda: None

    def moved(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy."""
        return tensor.to(self._device)

    def capturing(self) -> bool:
        """Never."""
        return False

    def native(self) -> Any:
        """None."""

    def address(self, tensor: torch.Tensor) -> int:
        """Of no use to anybody."""
        return tensor.data_ptr()

    def kernels(self, sources: Sequence[str]) -> Mapping[str, int]:  # noqa: ARG002 - it runs none of ours
        """None."""
        return {}

    def gate(self) -> Gate | None:
        """None."""
        return None


class _Blocking:
    """A stream and an event: the host waits for all that the device has to do."""

    handle = 0

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def record(self) -> Event:
        torch.accelerator.synchronize(self._device)
        return self

    def after(self, event: Event) -> None:
        event.wait()

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        pass
