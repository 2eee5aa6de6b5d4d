"""The kernels of csrc/cuda, compiled at first use by CuPy (NVRTC) for the device's architecture.

CuPy keeps what it has compiled in CUPY_CACHE_DIR (~/.cupy/kernel_cache), by source, options and architecture: the first
process of a machine takes some seconds, all later ones some milliseconds.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

from byteps_like.cuda.device import why_not
from byteps_like.cuda.sources import OPTIONS, Source, sources
from byteps_like.errors import InvalidArgumentError

_lock = threading.Lock()
_loaded: dict[int, dict[str, Any]] = {}  # by device: CuPy's modules, which must stay, by source


def handles(device: int, names: Sequence[str] = ()) -> dict[str, int]:
    """Kernels by name as CUfunctions of the device's primary context, which is torch's too.

    Args:
        device: Its index among those visible.
        names: The sources wanted ("casts", "feedback"); none: all of them.

    Thread-safe. Blocks while what is not in the cache is compiled (some tenths of a second a source).

    Raises:
        InvalidArgumentError: There is no such source, or no GPU can be used here; the message says why.
    """
    if why := why_not():
        raise InvalidArgumentError(f"GPU kernels: {why}")
    wanted = _choose(names)
    with _lock:
        modules = _loaded.setdefault(device, {})
        return dict(item for source in wanted for item in _handles(device, source, modules))


def _choose(names: Sequence[str]) -> list[Source]:
    unknown = set(names) - {source.name for source in sources()}
    if unknown:
        raise InvalidArgumentError(f"GPU kernels: there is no {sorted(unknown)[0]}.cu")
    return [source for source in sources() if not names or source.name in names]


def _handles(device: int, source: Source, modules: dict[str, Any]) -> Iterator[tuple[str, int]]:
    import cupy

    with cupy.cuda.Device(device):
        if source.name not in modules:
            modules[source.name] = cupy.RawModule(code=source.text, options=OPTIONS, backend="nvrtc")
        for kernel in source.kernels:
            yield kernel, int(modules[source.name].get_function(kernel).kernel.ptr)
