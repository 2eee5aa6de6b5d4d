"""The CUDA implementation of the device interface, on top of torch.cuda."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from byteps_like import cuda
from byteps_like.config import Config
from byteps_like.cuda.device import connections
from byteps_like.errors import BytePSLikeError, SystemCallError
from byteps_like.torch.device.api import Event, Gate, Stream

logger = logging.getLogger(__name__)

_cuda: Any = torch.cuda  # half of it has no types
_UNKNOWN = object()
_PORTABLE = 1  # cudaHostRegisterPortable: page-locked for all devices of this process


_asked = False
"""Whether a job of this process was begun with `stream_waits`."""


def let_streams_wait() -> None:
    """A job of this process has the setting `stream_waits`."""
    global _asked
    _asked = True


class CudaEvent:
    """See api.Event.

    Threads of ours ask on its device: on number 0, which is theirs, CUDA's runtime would make a context that nobody
    uses.
    """

    def __init__(self, event: Any, device: torch.device) -> None:
        self.event, self._device = event, device

    def done(self) -> bool:
        """Returns whether all work before the event is done; never blocks."""
        with _cuda.device(self._device):
            return bool(self.event.query())

    def wait(self) -> None:
        """Blocks the calling thread until the event is done; the thread sleeps."""
        with _cuda.device(self._device):
            self.event.synchronize()


class CudaStream:
    """A CUDA stream of torch. Implements api.Stream."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.handle = int(stream.cuda_stream)

    def record(self) -> Event:
        """Returns an event at the end of the queued work; a host thread that waits for it sleeps."""
        event = _cuda.Event(blocking=True)
        event.record(self.stream)
        return CudaEvent(event, self.stream.device)

    def after(self, event: Event) -> None:
        """Makes later work of this stream wait for `event`; the host does not wait."""
        assert isinstance(event, CudaEvent)
        self.stream.wait_event(event.event)


class CudaDevice:
    """A CUDA GPU. Implements api.Device."""

    def __init__(self, device: torch.device) -> None:
        self.name = str(device)
        self.ordinal = int(device.index)
        self._device = device
        self._native: Any = _UNKNOWN
        self._asked_by_environment = Config.partly_from_env(("stream_waits",)).stream_waits
        self._compiles = True  # until it is known that they can't be
        self._lock = threading.Lock()

    def current(self) -> Stream:
        """Returns the calling thread's current torch stream."""
        return CudaStream(_cuda.current_stream(self._device))

    def side(self, up: bool = False) -> Stream:
        """Returns a high-priority stream of torch's pool, so that copies precede kernels that can wait. The pool hands
        out 32 streams of each priority in turn."""
        return CudaStream(_cuda.Stream(self._device, priority=-2 if up else -1))

    @contextmanager
    def using(self, stream: Stream) -> Iterator[None]:
        """Enters torch's guards of the device and of the stream. The device guard is the outer one: when a stream guard
        ends, it restores the thread's previous device. Our threads start with device 0, where that would create an
        unused context."""
        assert isinstance(stream, CudaStream)
        with _cuda.device(self._device), _cuda.stream(stream.stream):
            yield

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Stream) -> None:
        """Queues the copy with torch, which recognizes page-locked memory, its own and other."""
        with torch.inference_mode(), self.using(stream):
            target.copy_(source, non_blocking=True)

    def keep(self, tensor: torch.Tensor, stream: Stream) -> None:
        """Tells torch's allocator that `stream` uses the tensor."""
        assert isinstance(stream, CudaStream)
        tensor.record_stream(stream.stream)

    def empty(self, like: torch.Tensor) -> torch.Tensor:
        """Returns page-locked memory from torch's cache."""
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=True, device="cpu")

    def lock(self, address: int, nbytes: int) -> Callable[[], None]:
        """Page-locks host memory until the returned function is called. If the driver refuses, raises DeviceError, or
        SystemCallError without the native core."""
        gpu = self.native()
        if gpu is not None:
            held = [gpu.pin_address(address, nbytes)]
            return held.clear
        runtime = _cuda.cudart()
        with _cuda.device(self._device):
            status = runtime.cudaHostRegister(address, nbytes, _PORTABLE)
        if int(status) != 0:
            raise SystemCallError(
                f"{nbytes} bytes of host memory can't be page-locked for {self.name}: {status}; raise `ulimit -l`, or"
                " the container's limit of locked memory"
            )
        return partial(runtime.cudaHostUnregister, address)

    def moved(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a copy of `tensor` on this GPU."""
        return tensor.to(self._device)

    def native(self) -> Any:
        """Returns the native core's Gpu, or None if it can't open the device; logs the reason once."""
        with self._lock:
            if self._native is _UNKNOWN:
                self._native = _opened(self.ordinal)
            return self._native

    def address(self, tensor: torch.Tensor) -> int:
        """Returns torch's address of the tensor, which is valid for the native core too."""
        return tensor.data_ptr()

    def kernels(self, sources: Sequence[str]) -> Mapping[str, int]:
        """Returns the handles of the kernels, compiled now or by an earlier process. If that fails, logs why, once,
        and returns none."""
        if not self._compiles:
            return {}
        try:
            with _cuda.device(
                self._device
            ):  # CuPy goes back to the device that it came from, and makes a context there
                return cuda.handles(self.ordinal, sources)
        except BytePSLikeError as error:
            self._compiles = False
            logger.warning(
                "%s: gradients are encoded on the CPU, because the GPU kernels are not available: %s", self.name, error
            )
            return {}

    def streams_wait(self) -> bool:
        """Returns whether `stream_waits` is set and the driver can make streams wait for a value in memory.

        A copy of memory that is not page-locked holds the driver's lock until its stream has come by, so no thread of
        ours could queue the copies for which that stream would wait: only who makes no such copies may set it.
        """
        gpu = self.native() if _asked or self._asked_by_environment else None
        return gpu is not None and bool(gpu.waits_by_value)

    def gate(self) -> Gate | None:
        """Returns a new gate of the native core, or None if hosts wait; see `streams_wait`."""
        gate: Gate | None = self.native().gate() if self.streams_wait() else None
        return gate

    def capturing(self) -> bool:
        """Returns whether the calling thread's current stream is being captured in a graph."""
        with _cuda.device(self._device):
            return bool(_cuda.is_current_stream_capturing())


def _opened(ordinal: int) -> Any:
    try:
        import byteps_like._core as core  # not at the top: torch's other users need no native core

        return core.Gpu(ordinal, connections=connections())
    except (ImportError, AttributeError, BytePSLikeError) as error:
        logger.warning(
            "cuda:%d: the native core can't use the device, so Python threads submit its operations: %s", ordinal, error
        )
        return None
