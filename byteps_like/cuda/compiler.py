"""One source of kernels to machine code, by the NVRTC that CuPy has loaded, kept on disk.

Not by cupy.RawModule: it ends the options with `-ftz=true`, and of two the last counts. Denormals would be zero on a
device and not on the CPU. No device is needed here.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import tempfile
from pathlib import Path

from byteps_like.cuda.sources import OPTIONS, KernelSource
from byteps_like.errors import DeviceError

logger = logging.getLogger(__name__)


def cache() -> Path:
    """Where images are kept: beside CuPy's own, in CUPY_CACHE_DIR (~/.cupy/kernel_cache)."""
    return Path(os.environ.get("CUPY_CACHE_DIR") or "~/.cupy/kernel_cache").expanduser()


def cached() -> list[Path]:
    """The images that there are, of any source, architecture and version."""
    return sorted(cache().glob("byteps_like-*.cubin"))


def image(source: KernelSource, capability: int) -> bytes:
    """What cuModuleLoadData takes: machine code, or PTX for a device that is newer than NVRTC.

    Args:
        source: One .cu file.
        capability: The device's, as CuPy has it: 90 for 9.0.

    Blocks for some tenths of a second if it isn't in the cache. Processes may do the same at once: what is in the cache
    is whole. A folder that can't be written is logged, and does no harm.

    Raises:
        DeviceError: There is no NVRTC, or it refuses; the message has its word for it.
    """
    version, target = _compiler(capability)
    what = "\0".join((version, target, *OPTIONS, source.text))
    place = cache() / f"byteps_like-{source.name}-{hashlib.sha256(what.encode()).hexdigest()[:32]}.cubin"
    with contextlib.suppress(OSError):
        return place.read_bytes()
    made = _compile(source, target)
    _keep(place, made)
    return made


def _compiler(capability: int) -> tuple[str, str]:
    """NVRTC's version, and the architecture to be asked for."""
    from cupy.cuda import nvrtc

    try:
        version, known = nvrtc.getVersion(), [int(number) for number in nvrtc.getSupportedArchs()]
    except RuntimeError as error:
        raise DeviceError(f"GPU kernels: {error}; install NVRTC: pip install 'byteps_like[cuda]'") from error
    if capability in known:
        return str(version), f"sm_{capability}"
    older = [number for number in known if number < capability]
    if not older:
        raise DeviceError(
            f"GPU kernels: NVRTC {version} compiles for {known}, not for {capability}: install an older NVRTC"
        )
    return str(version), f"compute_{max(older)}"


def _compile(source: KernelSource, target: str) -> bytes:
    from cupy.cuda import nvrtc

    program = nvrtc.createProgram(source.text, f"{source.name}.cu", (), ())
    try:
        nvrtc.compileProgram(program, (*OPTIONS, f"-arch={target}"))
        return bytes(nvrtc.getCUBIN(program) if target.startswith("sm_") else nvrtc.getPTX(program))
    except nvrtc.NVRTCError as error:
        log = nvrtc.getProgramLog(program)
        raise DeviceError(f"GPU kernels: {source.name}.cu for {target}: {error}\n{log}") from error
    finally:
        nvrtc.destroyProgram(program)


def _keep(place: Path, made: bytes) -> None:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=place.parent, prefix=f"{place.stem}-", delete=False) as half:
            half.write(made)
        Path(half.name).replace(place)
    except OSError as error:
        logger.warning(
            "every process compiles the GPU kernels, because the cache %s can't be written: %s", place.parent, error
        )
