"""How long a codec takes on this machine: measured, and as curves that are straight but for a floor.

The form is that of HiPress (Bai et al., "Gradient Compression Supercharged High-Performance Data Parallel DNN
Training", SOSP 2021): max(floor, slope * elements + base).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from byteps_like.compression.codec import Codec, Trait
from byteps_like.dtypes import DType, Op

SIZES = (1 << 12, 1 << 15, 1 << 18, 1 << 20)
"""Elements at which is measured."""
_REPEATS = 5
_DRAW = (1, 1, 0)


@dataclass(frozen=True)
class Curve:
    """Seconds over elements."""

    floor: float = 0.0
    slope: float = 0.0
    base: float = 0.0

    def __call__(self, numel: float) -> float:
        """Seconds for `numel` elements."""
        return max(self.floor, self.slope * numel + self.base)

    @classmethod
    def through(cls, numels: Sequence[int], seconds: Sequence[float]) -> Curve:
        """The least time as floor, and the line nearest in relative terms; neither slope nor base is below 0."""
        x, y = np.asarray(numels, float), np.asarray(seconds)
        slope, base = np.polyfit(x, y, 1, w=1 / y)
        if base < 0:
            slope, base = float(np.sum(x / y) / np.sum((x / y) ** 2)), 0.0
        return cls(float(y.min()), max(float(slope), 0.0), float(base))


@dataclass(frozen=True)
class CodecCosts:
    """Of one codec: `encode` and `decode` on a worker, `add` of a contribution and `emit` of the sum on a server."""

    encode: Curve = Curve()
    decode: Curve = Curve()
    add: Curve = Curve()
    emit: Curve = Curve()


@lru_cache(maxsize=64)
def measure(codec: Codec, world: int, sizes: tuple[int, ...] = SIZES) -> CodecCosts:
    """Runs it on this thread, on normal numbers, for rounds of `world` contributions. A tenth of a second, once."""
    import byteps_like._core as _core  # not at the top: portable workers know these classes, too

    rows = [_measure(_core.Codec(codec.spec(), world), codec.trait, numel) for numel in sizes]
    return _costs(sizes, rows)


@lru_cache(maxsize=64)
def measure_raw(dtype: DType = DType.FLOAT32, sizes: tuple[int, ...] = SIZES) -> CodecCosts:
    """Of what is sent as elements of `dtype`: cast at both ends if it is not fp32, added by the server."""
    rows = [_measure_raw(dtype, numel) for numel in sizes]
    return _costs(sizes, rows)


def _costs(sizes: Sequence[int], rows: Sequence[tuple[float, ...]]) -> CodecCosts:
    """What there is nothing to do for costs nothing."""
    return CodecCosts(*(Curve.through(sizes, column) if any(column) else Curve() for column in zip(*rows, strict=True)))


def _measure_raw(dtype: DType, numel: int) -> tuple[float, float, float, float]:
    from byteps_like._core import kernels

    fp32, own = int(DType.FLOAT32), int(dtype)
    wide, narrow = np.ones(numel, np.float32), np.zeros(numel * dtype.itemsize, np.uint8)
    add = _seconds(lambda: kernels.accumulate(int(Op.SUM), own, wide, narrow))
    if dtype is DType.FLOAT32:
        return 0.0, 0.0, add, 0.0
    encode = _seconds(lambda: kernels.cast(fp32, own, narrow, wide))
    return encode, _seconds(lambda: kernels.cast(own, fp32, wide, narrow)), add, 0.0


def _measure(core: Any, trait: Trait, numel: int) -> tuple[float, float, float, float]:
    from byteps_like._core import kernels

    plan = core.plan(numel)
    x = np.random.default_rng(0).standard_normal(numel).astype(np.float32)
    agreed, payload = np.zeros(plan["prelude"], np.uint8), np.zeros(plan["payload"], np.uint8)
    if plan["prelude"]:
        core.prepare(x, _DRAW, agreed)
    encode = _seconds(lambda: core.encode(x, _DRAW, agreed, payload))
    sent = payload[: core.encode(x, _DRAW, agreed, payload)]
    out = np.empty_like(x)
    if trait is Trait.DENSE:
        dtype = DType(plan["dense"])
        total = np.zeros(sent.size // dtype.itemsize * dtype.accumulator.itemsize, np.uint8)
        add = _seconds(lambda: kernels.accumulate(int(Op.SUM), int(dtype), total, sent))
        return encode, _seconds(lambda: core.decode(sent, 1, _DRAW, agreed, 1.0, out)), add, 0.0
    accumulator, result = np.zeros(plan["accumulator"] + 64, np.uint8), np.zeros(plan["result"], np.uint8)
    accumulator = accumulator[-accumulator.ctypes.data % 64 :][: plan["accumulator"]]
    core.reset(numel, accumulator)
    core.accumulate(numel, sent, accumulator)
    written = core.emit(numel, 1, _DRAW, accumulator.copy(), result)
    emit = _seconds(lambda: core.emit(numel, 1, _DRAW, accumulator.copy(), result))
    decode = _seconds(lambda: core.decode(result[:written], 1, _DRAW, agreed, 1.0, out))
    core.reset(numel, accumulator)
    return encode, decode, _seconds(lambda: core.accumulate(numel, sent, accumulator)), emit


def _seconds(work: Callable[[], object]) -> float:
    """The median of some runs, after one."""
    work()
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)
