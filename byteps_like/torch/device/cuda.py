"""torch.cuda behind the seam of devices."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from byteps_like import cuda
from byteps_like.cuda.device import connections
from byteps_like.errors import BytePSLikeError, SystemCallError
from byteps_like.torch.device.api import Event, Gate, Stream

logger = logging.getLogger(__name__)

_cuda: Any = torch.cuda  # half of it has no types
_UNKNOWN = object()
_PORTABLE = 1  # cudaHostRegisterPortable: page-locked for all devices of this process


class CudaEvent:
    """See api.Event.

    Threads of ours ask on its device: on number 0, which is theirs, CUDA's runtime would make a context that nobody
    uses.
    """

    def __init__(self, event: Any, device: torch.device) -> None:
        self.event, self._device = event, device

    def done(self) -> bool:
        """Whether all before it is done."""
        with _cuda.device(self._device):
            return bool(self.event.query())

    def wait(self) -> None:
        """Blocks the host; it sleeps meanwhile."""
        with _cuda.device(self._device):
            self.event.synchronize()


class CudaStream:
    """See api.Stream."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.handle = int(stream.cuda_stream)

    def record(self) -> Event:
        """An event that a host sleeps for."""
        event = _cuda.Event(blocking=True)
        event.record(self.stream)
        return CudaEvent(event, self.stream.device)

    def after(self, event: Event) -> None:
        """The stream waits."""
        assert isinstance(event, CudaEvent)
        self.stream.wait_event(event.event)


class CudaDevice:
    """See api.Device."""

    def __init__(self, device: torch.device) -> None:
        self.name = str(device)
        self.ordinal = int(device.index)
        self._device = device
        self._native: Any = _UNKNOWN
        self._compiles = True  # until it is known that they can't be
        self._lock = threading.Lock()

    def current(self) -> Stream:
        """This thread's."""
        return CudaStream(_cuda.current_stream(self._device))

    def side(self, up: bool = False) -> Stream:
        """One of torch's pool, of high priority: copies go before kernels that could wait. There are 32 of a priority,
        in turn."""
        return CudaStream(_cuda.Stream(self._device, priority=-2 if up else -1))

    @contextmanager
    def using(self, stream: Stream) -> Iterator[None]:
        """torch's own guards. That of the device is the outer one: a stream's, when it ends, sets the device that the
        thread came with, and a thread of ours came with number 0, where that would make a context that nobody uses."""
        assert isinstance(stream, CudaStream)
        with _cuda.device(self._device), _cuda.stream(stream.stream):
            yield

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Stream) -> None:
        """Queued by torch, which knows page-locked memory of its own and of others."""
        with torch.inference_mode(), self.using(stream):
            target.copy_(source, non_blocking=True)

    def keep(self, tensor: torch.Tensor, stream: Stream) -> None:
        """Told to torch's allocator."""
        assert isinstance(stream, CudaStream)
        tensor.record_stream(stream.stream)

    def empty(self, like: torch.Tensor) -> torch.Tensor:
        """Of torch's cache of page-locked memory."""
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=True, device="cpu")

    def lock(self, address: int, nbytes: int) -> Callable[[], None]:
        """Raises DeviceError, or without the native core SystemCallError, if the driver refuses."""
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
        """A copy."""
        return tensor.to(self._device)

    def native(self) -> Any:
        """By the core's own driver; None, and the log says why once, where that can't be."""
        with self._lock:
            if self._native is _UNKNOWN:
                self._native = _opened(self.ordinal)
            return self._native

    def address(self, tensor: torch.Tensor) -> int:
        """torch's own."""
        return tensor.data_ptr()

    def kernels(self, sources: Sequence[str]) -> Mapping[str, int]:
        """Compiled now, or by an earlier process."""
        if not self._compiles:
            return {}
        try:
            with _cuda.device(
                self._device
            ):  # CuPy goes back to the device that it came from, and makes a context there
                return cuda.handles(self.ordinal, sources)
        except BytePSLikeError as error:
            self._compiles = False
            logger.warning("%s: the host's processors encode, since its kernels can't be had: %s", self.name, error)
            return {}

    def gate(self) -> Gate | None:
        """The core's."""
        gpu = self.native()
        gate: Gate | None = gpu.gate() if gpu is not None and gpu.waits_by_value else None
        return gate

    def capturing(self) -> bool:
        """As torch has it."""
        with _cuda.device(self._device):
            return bool(_cuda.is_current_stream_capturing())


def _opened(ordinal: int) -> Any:
    try:
        import byteps_like._core as core  # not at the top: torch's other users need no native core

        return core.Gpu(ordinal, connections=connections())
    except (ImportError, AttributeError, BytePSLikeError) as error:
        logger.warning(
            "cuda:%d: the native core doesn't reach it, so threads launch what has come down: %s", ordinal, error
        )
        return None
