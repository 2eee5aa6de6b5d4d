"""The one seam to GPUs: what the rest of byteps_like.torch asks of the device that a tensor is on.

Everything goes through a Device: torch.cuda's is in cuda_device, tests put one of their own in its place (`replace`),
and other kinds are served by PlainDevice, without overlap. The words are CUDA's: what is queued on one stream is done
in its order, an event marks a place in a stream, and waiting for an event is either the host's or another stream's.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from byteps_like.errors import InvalidArgumentError


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


_known: dict[torch.device, Device] = {}
_lock = threading.Lock()


def at(device: torch.device) -> Device | None:
    """The device that torch knows by this; None for this host's memory."""
    if device.type in ("cpu", "meta"):
        return None
    with _lock:
        if device not in _known:
            _known[device] = _made(device)
        return _known[device]


def _made(device: torch.device) -> Device:
    if device.type == "cuda":
        from byteps_like.torch.cuda_device import CudaDevice  # few processes have one

        return CudaDevice(device)
    return PlainDevice(device)


def _find(tensor: torch.Tensor) -> Device | None:
    return at(tensor.device)


_finder: Callable[[torch.Tensor], Device | None] = _find
replaced = False
"""Whether `replace` is in force: then a tensor that says it is on the CPU may be on a device all the same."""


def of(tensor: torch.Tensor) -> Device | None:
    """The device that `tensor` is on; None for this host's memory."""
    return None if tensor.is_cpu and not replaced else _finder(tensor)


@contextlib.contextmanager
def replace(finder: Callable[[torch.Tensor], Device | None]) -> Iterator[None]:
    """Within the block `finder` says which device a tensor is on. For tests, where there is no device."""
    global _finder, replaced
    _finder, replaced = finder, True
    try:
        yield
    finally:
        _finder, replaced = _find, False


def why_not() -> str:
    """Why tensors can't be on a GPU here; "" if they can."""
    backends: Any = torch.backends
    if not backends.cuda.is_built():
        return f"torch {torch.__version__} is built without CUDA: install a CUDA build of torch"
    if not torch.cuda.is_available():
        return "torch finds no CUDA device: see nvidia-smi and CUDA_VISIBLE_DEVICES"
    return ""


def check_not_capturing(device: Device, what: str) -> None:
    """Raises InvalidArgumentError while a CUDA graph is being captured: a replay would send nothing."""
    if device.capturing():
        raise InvalidArgumentError(
            f"{what} while a CUDA graph is captured on {device.name}: a graph records what the device does, and a"
            " replay would not send anything; capture forward and backward without it, and reduce between replays"
        )
