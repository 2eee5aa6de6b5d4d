"""A CUDA device for torch's layer, played by the software libcuda of the native tests (tests/software_gpu).

Tensors are the host's, counted as device memory once they go to the device; streams, copies, waits and kernels are
those of the stand-in, so the engine's stager is the real one. What torch calculates it does at once: `in_stream_order`
has it wait until the thread's stream has come by, which is when a device would do it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from byteps_like import _core
from byteps_like.cuda.sources import sources
from byteps_like.torch.device import devices, inflight
from tests.fakes.software_driver import DRIVER


class StreamEvent:
    """See torch.device_api.Event."""

    def __init__(self, event: Any) -> None:
        self.event = event

    def done(self) -> bool:
        return bool(self.event.done())

    def wait(self) -> None:
        self.event.synchronize()


class DriverStream:
    """See torch.device_api.Stream."""

    def __init__(self, gpu: Any) -> None:
        self._gpu, self.stream = gpu, gpu.stream()
        self.handle = self.stream.handle

    def record(self) -> StreamEvent:
        event = self._gpu.event()
        event.record(self.handle)
        return StreamEvent(event)

    def after(self, event: StreamEvent) -> None:
        event.event.block(self.handle)


class SoftwareCuda:
    """See torch.device_api.Device. Each thread has a stream of its own."""

    def __init__(self, control: ctypes.CDLL, ordinal: int = 0) -> None:
        self.name, self.ordinal, self.control = f"software:{ordinal}", ordinal, control
        self.copied = {"down": 0, "up": 0}
        """Bytes, by torch's layer."""
        self.gpu = _core.Gpu(ordinal, str(DRIVER))
        self.compiled: set[str] = set()
        """Sources of which kernels were asked for."""
        self.stream_waits = True
        """The setting."""
        self.lazy = False
        """Whether what torch calculates doesn't wait for streams: it uses what is there."""
        self._module = self.gpu.load(str(DRIVER))
        self._own = threading.local()
        self._streams: weakref.WeakSet[DriverStream] = weakref.WeakSet()
        self._host: set[int] = set()
        self._adopted: set[int] = set()
        self._lock = threading.Lock()

    def current(self) -> DriverStream:
        if not hasattr(self._own, "stream"):
            self._own.stream = self.side()
        return self._own.stream

    def side(self, up: bool = False) -> DriverStream:
        stream = DriverStream(self.gpu)
        with self._lock:
            self._streams.add(stream)
        return stream

    @contextlib.contextmanager
    def using(self, stream: DriverStream) -> Iterator[None]:
        before, self._own.stream = self.current(), stream
        try:
            yield
        finally:
            self._own.stream = before

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: DriverStream) -> None:
        self.copied["up" if self.holds(target) else "down"] += target.nbytes
        self.gpu.copy(self._known(target), self._known(source), target.nbytes, stream.handle)
        weakref.finalize(stream, lambda *held: None, target, source)  # page-locked memory too, as torch's cache does

    def _known(self, tensor: torch.Tensor) -> int:
        return tensor.data_ptr() if not self.holds(tensor) else self.address(tensor)

    def keep(self, tensor: torch.Tensor, stream: DriverStream) -> None:
        weakref.finalize(stream, lambda held: None, tensor)

    def empty(self, like: torch.Tensor) -> torch.Tensor:
        found = torch.empty(like.shape, dtype=like.dtype)
        weakref.finalize(found.untyped_storage(), self.lock(found.data_ptr(), found.nbytes))
        return found

    def lock(self, address: int, nbytes: int) -> Callable[[], None]:
        held = [self.gpu.pin_address(address, nbytes)]
        self._host.add(address)

        def unlock() -> None:
            self._host.discard(address)
            held.clear()

        return unlock

    def moved(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()

    def capturing(self) -> bool:
        return False

    def native(self) -> Any:
        return self.gpu

    def address(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        begin = storage.data_ptr()
        with self._lock:
            if begin not in self._adopted:
                self._adopted.add(begin)
                self.control.software_gpu_adopt(ctypes.c_void_p(begin), ctypes.c_uint64(storage.nbytes()))
                weakref.finalize(storage, self._disown, begin)
        return tensor.data_ptr()

    def _disown(self, begin: int) -> None:
        self._adopted.discard(begin)
        self.control.software_gpu_disown(ctypes.c_void_p(begin))

    def kernels(self, wanted: Sequence[str]) -> Mapping[str, int]:
        self.compiled.update(wanted)
        found = [kernel for source in sources() if source.name in wanted for kernel in source.kernels]
        return {kernel: self._module.function(kernel) for kernel in found}

    def streams_wait(self) -> bool:
        return self.stream_waits and self.gpu.waits_by_value

    def gate(self) -> Any:
        return self.gpu.gate() if self.streams_wait() else None

    # What tests ask

    def awaited(self, future: torch.futures.Future[Any]) -> Any:
        """Its value once all that is queued on the device is done. A future that knows the device would have the
        current stream wait for that of the thread which completed it; torch's know CUDA only."""
        value = future.wait()
        with self._lock:
            streams = list(self._streams)
        for stream in streams:
            stream.stream.synchronize()
        return value

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is the device's: all are but page-locked ones."""
        return tensor.layout is not torch.strided or tensor.untyped_storage().data_ptr() not in self._host

    def in_stream_order(self) -> TorchDispatchMode:
        """For a thread that trains."""
        return _InStreamOrder(self)


class _InStreamOrder(TorchDispatchMode):
    def __init__(self, device: SoftwareCuda) -> None:
        super().__init__()
        self._device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self._device.lazy:
            self._device.current().stream.synchronize()
        return func(*args, **(kwargs or {}))


@functools.cache
def _make_operators() -> None:
    """Has torch make the Python objects of all its operators, which `in_stream_order` is called with.

    Else torch makes each when a mode is first called with it, and keeps its address but no reference. Of two threads
    that do so at once one puts its object in the place of the other's, which is freed: the process crashes there, or
    with the next call of that operator.
    """
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, operator = name.partition("::")
        packet, _, overload = operator.partition(".")
        with contextlib.suppress(AttributeError):  # those that modes are never called with
            getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")


def software_control() -> ctypes.CDLL:
    """The stand-in, begun anew."""
    control = ctypes.CDLL(str(DRIVER))
    _make_operators()  # before there are ranks, which are threads
    gc.collect()  # or what is left of another test would give back what is ours, by the same handles
    control.software_gpu_reset()
    control.software_gpu_misuse.restype = ctypes.c_char_p
    return control


@contextlib.contextmanager
def software_cuda() -> Iterator[SoftwareCuda]:
    """Within the block every tensor of the program is on the device; what was done with that wrongly is an error."""
    device = SoftwareCuda(software_control())
    with devices.replace(lambda tensor: device if device.holds(tensor) else None):
        yield device
    inflight._parked.clear()  # operations of a device that has gone
    assert device.control.software_gpu_misuse() == b""
