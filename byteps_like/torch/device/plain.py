"""Devices whose page-locked memory and streams are not supported: every copy blocks the host."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from byteps_like.torch.device.api import Event, Gate, Stream


class PlainDevice:
    """A device other than a CUDA GPU. Its page-locked memory and streams are not used: every copy blocks the host.
    Implements api.Device."""

    ordinal = -1

    def __init__(self, device: torch.device) -> None:
        self.name = str(device)
        self._device = device

    def current(self) -> Stream:
        """Returns a stream whose every operation waits for the whole device."""
        return _Blocking(self._device)

    def side(self, up: bool = False) -> Stream:  # noqa: ARG002 - there is but one
        """Returns the same stream as `current`."""
        return self.current()

    def using(self, stream: Stream) -> AbstractContextManager[Any]:  # noqa: ARG002 - there is but one
        """Returns a context manager without effect."""
        return contextlib.nullcontext()

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Stream) -> None:  # noqa: ARG002 - the same
        """Copies at once; blocks until the copy is complete."""
        with torch.inference_mode():
            target.copy_(source)

    def keep(self, tensor: torch.Tensor, stream: Stream) -> None:
        """Does nothing: every copy is complete when `copy` returns."""

    def empty(self, like: torch.Tensor) -> torch.Tensor:
        """Returns pageable memory of the host."""
        return torch.empty(like.shape, dtype=like.dtype, device="cpu")

    def lock(self, address: int, nbytes: int) -> Callable[[], None]:  # noqa: ARG002 - it stays as it is
        """Locks nothing; returns a function without effect."""
        return lambda: None

    def moved(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a copy of `tensor` on this device."""
        return tensor.to(self._device)

    def capturing(self) -> bool:
        """Returns False: such devices have no graphs to capture."""
        return False

    def native(self) -> Any:
        """Returns None: the native core uses CUDA devices only."""

    def address(self, tensor: torch.Tensor) -> int:
        """Returns torch's address, which the native core does not use."""
        return tensor.data_ptr()

    def kernels(self, sources: Sequence[str]) -> Mapping[str, int]:  # noqa: ARG002 - it runs none of ours
        """Returns no kernels: the host encodes."""
        return {}

    def streams_wait(self) -> bool:
        """Returns False: no stream can wait for the network."""
        return False

    def gate(self) -> Gate | None:
        """Returns None: see `streams_wait`."""
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
