"""CUDA, as rows of `byteps-like doctor`: the driver and its devices, and what compiles kernels."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from byteps_like.cuda.device import DeviceInfo, Driver, why_not
from byteps_like.cuda.sources import sources
from byteps_like.launch.host import GIB, Row, State, judged


def cuda() -> Iterator[Row]:
    """The driver and its devices. Their absence is nothing to fix."""
    try:
        driver = Driver()
    except OSError as error:
        absent = "libcuda.so.1" in str(error)
        text = "no driver: workers train on the CPU" if absent else f"the driver does not start: {error}"
        yield judged("CUDA", absent, text, "see nvidia-smi: driver and kernel module must agree")
        return
    devices = driver.devices()
    text = ", ".join(["driver for CUDA {}.{}".format(*driver.version()), *map(told, devices)])
    yield judged("CUDA", bool(devices), text, "no device is visible: see CUDA_VISIBLE_DEVICES")
    if devices:
        yield kernels()


def told(info: DeviceInfo) -> str:
    """One of them in some words."""
    return f"{info.name} ({info.architecture}, {info.memory_bytes / GIB:.0f} GiB)"


def kernels() -> Row:
    """Whether they can be compiled, and where they are kept."""
    if why := why_not():
        what, _, fix = why.partition(": ")
        return Row("GPU kernels", State.WARN, f"{what}: codecs run on the CPU", fix or "see docs/gpu.md")
    packages = importlib.metadata.packages_distributions().get("cupy", ["cupy"])
    cache = Path(os.environ.get("CUPY_CACHE_DIR") or "~/.cupy/kernel_cache").expanduser()
    held = len(list(cache.glob("*.cubin"))) if cache.is_dir() else 0
    text = (
        f"{len(sources())} sources, {packages[0]} {importlib.metadata.version(packages[0])}, {held} compiled in {cache}"
    )
    return Row("GPU kernels", State.OK, text)


ROWS: tuple[Callable[[], Row | Iterable[Row]], ...] = (cuda,)
