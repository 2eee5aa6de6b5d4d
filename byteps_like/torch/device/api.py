"""The interface through which byteps_like.torch uses the device of a tensor.

All device work goes through a Device: CudaDevice for CUDA GPUs, PlainDevice for other kinds, without overlap of copies
and compute. The terms are those of CUDA: the work of a stream runs in order, an event marks a position in a stream, and
the host or another stream can wait for an event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch


class Event(Protocol):
    """A position in a stream. Thread-safe."""

    def done(self) -> bool:
        """Returns whether all work before the event is done; never blocks."""

    def wait(self) -> None:
        """Blocks the calling thread, without the GIL, until all work before the event is done."""


class Stream(Protocol):
    """A queue of work on a device. Thread-safe."""

    @property
    def handle(self) -> int:
        """The driver's handle of the stream."""

    def record(self) -> Event:
        """Returns an event at the end of the queued work."""

    def after(self, event: Event) -> None:
        """Makes work that is queued from now on wait for `event`; the host does not wait."""


class Gate(Protocol):
    """A barrier for streams that the host opens once."""

    def block(self, stream: int) -> bool:
        """Makes later work of the stream with this handle wait. Returns False if the driver does not support it."""

    def open(self) -> None:
        """Releases all streams that wait, and those that would wait later. Idempotent."""


class Device(Protocol):
    """One device. Thread-safe; a call blocks only if its docstring says so."""

    @property
    def name(self) -> str:
        """torch's name of the device, such as "cuda:0"."""

    @property
    def ordinal(self) -> int:
        """The device's number in this process; -1 if the native core does not support its kind."""

    def current(self) -> Stream:
        """Returns the stream on which the calling thread's operations are queued."""

    def side(self, up: bool = False) -> Stream:
        """Returns another stream, whose work precedes the program's where both could run. Streams may be reused, but
        those for `up`, on which nothing waits for the program, serve nothing else."""

    def using(self, stream: Stream) -> AbstractContextManager[Any]:
        """Queues the calling thread's operations on `stream` within the block."""

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Stream) -> None:
        """Queues a copy from the device to page-locked memory, or back."""

    def keep(self, tensor: torch.Tensor, stream: Stream) -> None:
        """Keeps the memory of a dropped `tensor` until the work that `stream` had queued by then is done."""

    def empty(self, like: torch.Tensor) -> torch.Tensor:
        """Returns contiguous page-locked host memory of the shape and dtype of `like`."""

    def lock(self, address: int, nbytes: int) -> Callable[[], None]:
        """Page-locks host memory until the returned function is called. Blocks. Raises SystemCallError or DeviceError
        if the driver refuses."""

    def moved(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a copy, on this device, of a host tensor. Blocks."""

    def capturing(self) -> bool:
        """Returns whether the calling thread's operations are being captured in a graph instead of run."""

    def native(self) -> Any:
        """Returns the native core's Gpu for this device, or None if there is none."""

    def address(self, tensor: torch.Tensor) -> int:
        """Returns the device address of the first element of `tensor`."""

    def kernels(self, sources: Sequence[str]) -> Mapping[str, int]:
        """Returns the handles of the csrc/cuda kernels by name; none, with the reason logged once, if they are not
        available. Blocks while they are compiled."""

    def streams_wait(self) -> bool:
        """Returns whether streams may wait for the network in place of the host."""

    def gate(self) -> Gate | None:
        """Returns a new closed gate, or None if the host must wait instead of the stream."""
