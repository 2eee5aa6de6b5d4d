"""The kernels of csrc/cuda on a device: compiled at first use for its architecture (see compiler), loaded by CuPy.

The first process of a machine takes some seconds, all later ones some milliseconds.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

from byteps_like.cuda.compiler import image
from byteps_like.cuda.device import why_not
from byteps_like.cuda.sources import KernelSource, sources
from byteps_like.errors import DeviceError, InvalidArgumentError

_lock = threading.Lock()
_loaded: dict[int, dict[str, Any]] = {}  # by device: CuPy's modules, which must stay, by source


def handles(device: int, names: Sequence[str] = ()) -> dict[str, int]:
    """Kernels by name as CUfunctions of the device's primary context, which is torch's too.

    Args:
        device: Its index among those visible.
        names: The sources wanted ("casts", "feedback"); none: all of them.

    Thread-safe. Blocks while what is not in the cache is compiled (some tenths of a second a source), and until the
    kernels are on the device: the driver may stop the device for that, so not while a stream waits for the host.

    Raises:
        DeviceError: They can't be compiled, or loaded.
        InvalidArgumentError: There is no such source, or no GPU can be used here; the message says why.
    """
    if why := why_not():
        raise InvalidArgumentError(f"GPU kernels: {why}")
    wanted = _choose(names)
    with _lock:
        modules = _loaded.setdefault(device, {})
        return dict(item for source in wanted for item in _handles(device, source, modules))


def _choose(names: Sequence[str]) -> list[KernelSource]:
    unknown = set(names) - {source.name for source in sources()}
    if unknown:
        raise InvalidArgumentError(f"GPU kernels: there is no {sorted(unknown)[0]}.cu")
    return [source for source in sources() if not names or source.name in names]


def _handles(device: int, source: KernelSource, modules: dict[str, Any]) -> Iterator[tuple[str, int]]:
    try:
        import cupy
    except ImportError as error:
        raise DeviceError(f"GPU kernels: CuPy can't be imported: {error}") from error
    try:
        current = cupy.cuda.Device(device)
        with current:
            if source.name not in modules:
                modules[source.name] = _loaded_module(cupy, image(source, int(current.compute_capability)))
            for kernel in source.kernels:
                yield kernel, int(modules[source.name].get_function(kernel).ptr)
    except DeviceError:
        raise
    except RuntimeError as error:  # CuPy's: it, or the machine code, is of a newer CUDA than the driver
        raise DeviceError(
            f"GPU kernels: {source.name}.cu can't be loaded: {error}; for a driver of CUDA 12 (byteps-like doctor"
            " says of which it is) the extra is byteps_like[cuda12]"
        ) from error


def _loaded_module(cupy: Any, binary: bytes) -> Any:
    module = cupy.cuda.Module()
    module.load(binary)
    return module
