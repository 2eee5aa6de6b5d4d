"""The text of the kernels and how it is compiled: for CuPy here, and for `make kernels`, which checks them all."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_HERE = Path(__file__).resolve().parent
# In a wheel, and in a checkout.
_FOLDERS = (_HERE / "kernels", _HERE.parents[1] / "csrc" / "cuda")
# Bit-identical to the CPU's codecs: no contraction of a product and a sum, division and square root of IEEE 754,
# denormals kept (the last three are the compilers' defaults, said here because so much hangs on them).
OPTIONS = ("-std=c++17", "--fmad=false", "--prec-div=true", "--prec-sqrt=true", "--ftz=false")
# What `make kernels` compiles for: the oldest that is served, and those with native bfloats and larger shared memory.
ARCHITECTURES = ("sm_75", "sm_80", "sm_90")

_INCLUDE = re.compile(r'^#include "(\w+\.cuh)"$', re.MULTILINE)
_KERNEL = re.compile(r"^KERNEL\((\d+)\)\s+(\w+)\(", re.MULTILINE)


@dataclass(frozen=True)
class KernelSource:
    """One .cu file, with what it includes put in the place of the lines that say so: it needs no search path."""

    name: str
    text: str
    kernels: tuple[str, ...]


def folder() -> Path:
    """Where the .cu files are.

    Raises:
        FileNotFoundError: Neither a wheel's folder nor a checkout's is there.
    """
    for place in _FOLDERS:
        if (place / "device.cuh").is_file():
            return place
    raise FileNotFoundError(f"the GPU kernels are neither in {_FOLDERS[0]} nor in {_FOLDERS[1]}: reinstall byteps_like")


@cache
def sources() -> tuple[KernelSource, ...]:
    """All of them, by name."""
    return tuple(_read(path) for path in sorted(folder().glob("*.cu")))


def _read(path: Path) -> KernelSource:
    included: set[str] = set()

    def include(match: re.Match[str]) -> str:
        if match[1] in included:
            return ""
        included.add(match[1])
        return _INCLUDE.sub(include, (path.parent / match[1]).read_text(encoding="utf-8").replace("#pragma once\n", ""))

    text = _INCLUDE.sub(include, path.read_text(encoding="utf-8"))
    return KernelSource(path.stem, text, tuple(name for _, name in _KERNEL.findall(text)))
