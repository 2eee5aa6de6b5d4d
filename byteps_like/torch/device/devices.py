"""Which device a tensor is on.

Tests put devices of their own in the place of torch's (`replace`).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.device.api import Device
from byteps_like.torch.device.cuda import CudaDevice
from byteps_like.torch.device.cuda import let_streams_wait as let_streams_wait
from byteps_like.torch.device.plain import PlainDevice

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
