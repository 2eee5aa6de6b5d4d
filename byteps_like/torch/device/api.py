"""The one seam to GPUs: what the rest of byteps_like.torch asks of the device that a tensor is on.

Everything goes through a Device: torch.cuda's is CudaDevice, and other kinds are served by PlainDevice, without
overlap. The words are CUDA's: what is queued on one stream is done in its order, an event marks a place in a stream,
and waiting for an event is either the host's or another stream's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch


class Event(Protocol):
    """A place in a stream. Thread-safe."""

    def done(self) -> bool:
        """Whether all before it is done; never blocks."""

    def wait(self) -> None:
        """Blocks the host, without the GIL, until then."""


class Stream(Protocol):
    """A queue of a device's work. Thread-safe."""

    @property
    def handle(self) -> int:
        """What the driver knows it by."""

    def record(self) -> Event:
        """The place that its queue has come to."""

    def after(self, event: Event) -> None:
        """What is queued from here on waits for `event`; the host does not."""


class Gate(Protocol):
    """What streams wait for until the host opens it; for one use."""

    def block(self, stream: int) -> bool:
        """Has the stream of that handle wait. False if the driver can't."""

    def open(self) -> None:
        """Lets all go on, now and later. Idempotent."""


class Device(Protocol):
    """One device, as the runtime uses it. Thread-safe; all calls but those that say so return at once."""

    @property
    def name(self) -> str:
        """As torch has it: "cuda:0"."""

    @property
    def ordinal(self) -> int:
        """Its number in this process; -1 for kinds that no driver of ours knows."""

    def current(self) -> Stream:
        """The stream that this thread's operations are queued on."""

    def side(self, up: bool = False) -> Stream:
        """Another one, that goes before those of the program where both could run. It may be one that was given before,
        but none serves `up`, where nothing waits for the program, and anything else."""

    def using(self, stream: Stream) -> AbstractContextManager[Any]:
        """Within the block this thread's operations are queued on `stream`."""

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Stream) -> None:
        """Queues a copy from the device to page-locked memory, or back."""

    def keep(self, tensor: torch.Tensor, stream: Stream) -> None:
        """The memory of `tensor` isn't used again before what `stream` has queued by its end is done."""

    def empty(self, like: torch.Tensor) -> torch.Tensor:
        """Page-locked memory of this host, contiguous, of the shape and element type of `like`."""

    def lock(self, address: int, nbytes: int) -> Callable[[], None]:
        """Page-locks memory of this host, until what it returns is called. Blocks. Raises SystemCallError,
        or DeviceError."""

    def moved(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of a tensor of this host. Blocks."""

    def capturing(self) -> bool:
        """Whether this thread's operations are recorded in a graph instead of run."""

    def native(self) -> Any:
        """The native core's Gpu, which works on the device by itself; None if there is none."""

    def address(self, tensor: torch.Tensor) -> int:
        """Where a tensor on the device begins, as that knows it."""

    def kernels(self, sources: Sequence[str]) -> Mapping[str, int]:
        """Those of csrc/cuda for the device; none, and the log says why once, where they can't be had. Blocks while
        they are compiled."""

    def gate(self) -> Gate | None:
        """A new gate, shut; None where the host must wait instead."""
