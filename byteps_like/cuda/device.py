"""Whether GPUs can be used here, and what they are: by the driver itself, through ctypes, without torch or CuPy."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

_LIBRARY = "libcuda.so.1"
_CONNECTIONS = 8  # unless the environment says otherwise
_OLDEST = (7, 5)  # compute capability: what the kernels are written for
# Of CUdevice_attribute.
_MULTIPROCESSORS, _MAJOR, _MINOR = 16, 75, 76


def connections(environ: Mapping[str, str] = os.environ) -> int:
    """How many queues of a device CUDA puts this process's streams into; 0: every launch blocks, so none goes on."""
    if environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"):
        return 0
    text = environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "")
    return int(text) if text.isdecimal() and int(text) > 0 else _CONNECTIONS


@dataclass(frozen=True)
class DeviceInfo:
    """One GPU as the driver describes it; where it is in the host, launch/hosts/gpus.py reads from the kernel."""

    index: int
    name: str
    capability: tuple[int, int]
    multiprocessors: int
    memory_bytes: int

    @property
    def architecture(self) -> str:
        """As compilers call it: "sm_90"."""
        return "sm_{}{}".format(*self.capability)


class Driver:
    """libcuda.so.1, initialised.

    Args:
        path: The library; tests pass their own.

    Raises:
        OSError: There is no such library, or it doesn't start; the message has the driver's word for it.
    """

    def __init__(self, path: str = _LIBRARY) -> None:
        self._library = ctypes.CDLL(path)
        self._call("cuInit", 0)

    def version(self) -> tuple[int, int]:
        """The greatest version of CUDA it serves."""
        number = ctypes.c_int()
        self._call("cuDriverGetVersion", ctypes.byref(number))
        return number.value // 1000, number.value % 1000 // 10

    def devices(self) -> list[DeviceInfo]:
        """Those visible to this process, in the order of CUDA_VISIBLE_DEVICES."""
        count = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        return [self._device(index) for index in range(count.value)]

    def _device(self, index: int) -> DeviceInfo:
        device, name, memory = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_size_t()
        self._call("cuDeviceGet", ctypes.byref(device), index)
        self._call("cuDeviceGetName", name, len(name), device)
        self._call("cuDeviceTotalMem_v2", ctypes.byref(memory), device)
        return DeviceInfo(
            index=index,
            name=name.value.decode(errors="replace"),
            capability=(self._attribute(_MAJOR, device), self._attribute(_MINOR, device)),
            multiprocessors=self._attribute(_MULTIPROCESSORS, device),
            memory_bytes=memory.value,
        )

    def _attribute(self, which: int, device: ctypes.c_int) -> int:
        value = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(value), which, device)
        return value.value

    def _call(self, name: str, *arguments: object) -> None:
        error = getattr(self._library, name)(*arguments)
        if error == 0:
            return
        text = ctypes.c_char_p()
        self._library.cuGetErrorName(error, ctypes.byref(text))
        raise OSError(f"{name}: {(text.value or b'error ' + str(error).encode()).decode()}")


@cache
def why_not() -> str:
    """Why no GPU can be used here, as a sentence with what to do; "" if one can. Blocks for the driver's start."""
    try:
        devices = Driver().devices()
    except OSError as error:
        return f"no CUDA driver: {error}"
    if not devices:
        return "the CUDA driver sees no device: see CUDA_VISIBLE_DEVICES"
    if all(device.capability < _OLDEST for device in devices):  # of which NVRTC, too, says that it is too old
        return f"{devices[0].name} is older than compute capability {_OLDEST[0]}.{_OLDEST[1]}"
    if importlib.util.find_spec("cupy") is None:
        return "CuPy, which compiles the kernels, is missing: pip install 'byteps_like[cuda]'"
    return ""
