"""What this host can do, as rows of `byteps-like doctor`: processor, memory, limits, software. Imports no torch."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import resource
import ssl
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

GIB = 1 << 30
_SIMD_FLAGS = ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_bf16", "sse4_2", "asimd", "asimdhp", "crc32")
_SMALLEST_SHM = 64 << 20
_ENOUGH_FILES = 4096
_SMALLEST_MEMORY = 1 * GIB


class Grade(StrEnum):
    """How a row stands. `FAIL` means that nothing will run here before it is fixed."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """One thing looked at: what was found and, unless it is well, what to do."""

    name: str
    state: Grade
    value: str
    fix: str = ""


def judged(name: str, good: bool, value: str, fix: str, otherwise: Grade = Grade.WARN) -> Finding:
    """A row that is OK if `good`, and else says how to fix it."""
    return Finding(name, Grade.OK, value) if good else Finding(name, otherwise, value, fix)


def read_text(path: str | Path, default: str = "") -> str:
    """A small file of the kernel's, stripped; `default` where it isn't."""
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return default


def bracketed(text: str) -> str:
    """The choice in force of "always [never] madvise"."""
    return text.partition("[")[2].partition("]")[0] or text


def size_text(size: float) -> str:
    """Bytes as GiB or MiB."""
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / (1 << 20):.0f} MiB"


def python() -> Finding:
    """The interpreter: 3.11 to 3.13."""
    good = (3, 11) <= sys.version_info[:2] <= (3, 13)
    return judged(
        "Python", good, f"{platform.python_version()} ({sys.executable})", "use Python 3.11 to 3.13", Grade.FAIL
    )


def system() -> Finding:
    """The kernel: Linux."""
    return judged(
        "system", sys.platform == "linux", f"{platform.system()} {platform.release()}", "use Linux", Grade.FAIL
    )


def cores() -> Finding:
    """CPUs of the host and those this process may use."""
    usable, there = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    text = f"{usable}" if usable == there else f"{usable} of {there} (affinity)"
    return judged("cores", usable > 1, text, "with one core servers and workers take turns; use more")


def processor() -> Finding:
    """Model and vector instructions."""
    fields = dict(
        (name.strip(), value.strip())
        for name, _, value in (line.partition(":") for line in read_text("/proc/cpuinfo").splitlines())
    )
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    simd = [flag for flag in _SIMD_FLAGS if flag in flags]
    model = fields.get("model name") or platform.machine()
    good = bool({"avx2", "asimd"} & flags)
    return judged("processor", good, f"{model}: {' '.join(simd) or 'no SIMD known'}", "sums run scalar on this CPU")


def native_core() -> Finding:
    """Whether the C++ core can be imported, and which kernels it chose."""
    try:
        core = importlib.import_module("byteps_like._core")
    except ImportError as error:
        fix = "build it: `make core`, or reinstall with a C++ compiler; until then workers take the portable door"
        return Finding("native core", Grade.WARN, f"not importable: {error}", fix)
    chosen = getattr(getattr(core, "kernels", None), "instruction_set", None)
    return Finding("native core", Grade.OK, f"importable, kernels: {chosen()}" if chosen else "importable")


def memory() -> Finding:
    """Memory available now, within the container's limit."""
    info = dict(line.split(":", 1) for line in read_text("/proc/meminfo").splitlines())
    total, available = (int(info[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    limit = read_text("/sys/fs/cgroup/memory.max")
    capped = f", container limit {size_text(int(limit))}" if limit.isdigit() else ""
    text = f"{size_text(available)} available of {size_text(total)}{capped}"
    return judged("memory", available >= _SMALLEST_MEMORY, text, "free some memory: a server holds two buffers per key")


def shared_memory() -> Finding:
    """/dev/shm. Arenas are memfds, counted against memory; libraries beside us use /dev/shm."""
    try:
        found = os.statvfs("/dev/shm")
    except OSError as error:
        return Finding("/dev/shm", Grade.WARN, str(error), "mount a tmpfs there: DataLoader workers need it")
    size = found.f_frsize * found.f_blocks
    fix = "DataLoader workers need more: docker run --shm-size=1g, or an emptyDir with medium: Memory"
    return judged("/dev/shm", size > _SMALLEST_SHM, f"{size_text(size)}", fix)


def huge_pages() -> Finding:
    """Transparent huge pages for shared memory."""
    chosen = bracketed(read_text("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "not there"))
    fix = "optional: echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled"
    return judged("huge pages (shm)", chosen in ("always", "within_size", "advise", "force"), chosen, fix)


def open_files() -> Finding:
    """Descriptors. Members raise the soft limit to the hard one, which is what counts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = hard == resource.RLIM_INFINITY or hard >= _ENOUGH_FILES
    fix = "ulimit -Hn 65536: a scheduler has one per member, a server up to 4 per worker and shard"
    return judged("open files", enough, f"{soft}, raised to {hard}" if soft != hard else f"{soft}", fix)


def openssl() -> Finding:
    """The OpenSSL that Python uses."""
    return judged("OpenSSL", ssl.OPENSSL_VERSION_INFO >= (3,), ssl.OPENSSL_VERSION, "links are made for OpenSSL 3")


def packages() -> Iterable[Finding]:
    """Versions of what we stand on, without importing it."""
    for name, needed_for in (("grpcio", ""), ("pyzmq", "the portable door"), ("torch", "byteps_like.torch")):
        try:
            yield Finding(name, Grade.OK, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            state = Grade.WARN if needed_for else Grade.FAIL
            yield Finding(
                name, state, "not installed", f"pip install {name}" + (f", for {needed_for}" if needed_for else "")
            )


ROWS: tuple[Callable[[], Finding | Iterable[Finding]], ...] = (
    system, python, cores, processor, native_core, memory, shared_memory, huge_pages, open_files, openssl, packages,
)  # fmt: skip
