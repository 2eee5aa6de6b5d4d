"""CUDA, as rows of `byteps-like doctor`: the driver and its devices, and what compiles kernels."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from byteps_like.config import Config
from byteps_like.cuda.compiler import cache, cached
from byteps_like.cuda.device import DeviceInfo, Driver, connections, why_not
from byteps_like.cuda.sources import sources
from byteps_like.errors import BytePSLikeError
from byteps_like.launch.hosts.host import GIB, Finding, Grade, judged


def cuda() -> Iterator[Finding]:
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
        yield torch_on_gpus()
        yield waits(_opened, Config.partly_from_env(("stream_waits",)).stream_waits)


def told(info: DeviceInfo) -> str:
    """One of them in some words."""
    return f"{info.name} ({info.architecture}, {info.memory_bytes / GIB:.0f} GiB)"


def kernels() -> Finding:
    """Whether they can be compiled, and where they are kept."""
    if why := why_not():
        what, _, fix = why.partition(": ")
        return Finding("GPU kernels", Grade.WARN, f"{what}: codecs run on the CPU", fix or "see docs/how-to/gpu.md")
    packages = importlib.metadata.packages_distributions().get("cupy", ["cupy"])
    version = importlib.metadata.version(packages[0])
    text = f"{len(sources())} sources, {packages[0]} {version}, {len(cached())} compiled in {cache()}"
    return Finding("GPU kernels", Grade.OK, text)


def torch_on_gpus() -> Finding:
    """Whether torch can put tensors there: its plain build can't. Imports torch, which takes seconds."""
    try:
        from byteps_like.torch.device import devices
    except ImportError as error:
        return Finding("torch on GPUs", Grade.WARN, f"no torch: {error}", "pip install torch: a CUDA build")
    what, _, fix = devices.why_not().partition(": ")
    return judged("torch on GPUs", not what, what or "yes", fix)


def waits(opened: Callable[[], Any], wanted: bool) -> Finding:
    """Who waits for the network: hosts, unless it is `wanted` that streams do, and the driver can have them wait."""
    try:
        why = opened().why_no_waits
    except (ImportError, AttributeError, BytePSLikeError) as error:
        return Finding(
            "GPU streams", Grade.WARN, f"the native core can't use the device: {error}", "see docs/how-to/gpu.md"
        )
    if not wanted:
        return Finding("GPU streams", Grade.OK, "hosts wait for gradients (stream_waits lets streams wait)")
    what, _, fix = why.partition("; ")
    text = f"hosts wait in their place: {what}" if why else "wait for gradients, hosts don't"
    return judged("GPU streams", not why, text, fix)


def _opened() -> Any:
    from byteps_like import _core  # where there is a device; elsewhere doctor needs none

    return _core.Gpu(0, connections=connections())


ROWS: tuple[Callable[[], Finding | Iterable[Finding]], ...] = (cuda,)
