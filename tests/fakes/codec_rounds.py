"""A whole round of a codec without a network: by the NumPy reference, and by the native core, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import byteps_like._core as _core
from byteps_like.compression.codec import SERVER_RANK, Codec, Draw, Floats, Trait
from byteps_like.dtypes import DType, Op

NUMPY = {
    DType.FLOAT32: np.float32, DType.FLOAT16: np.float16, DType.UINT8: np.uint8, DType.INT8: np.int8,
    DType.INT16: np.int16, DType.INT32: np.int32, DType.UINT16: np.uint16, DType.UINT32: np.uint32,
    DType.BFLOAT16: np.uint16,
}  # fmt: skip
"""The arrays that hold elements of a dtype; bfloat16 as its bits."""


@dataclass
class Round:
    """What a round came to. `agreed` is empty without a prelude; a DENSE codec has no `result` of its own."""

    payloads: list[bytes]
    residuals: list[Floats]
    agreed: NDArray[Any]
    result: bytes
    out: Floats


def _reduced(dtype: DType, op: Op, arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """As a server sums: in the accumulator's type, rounded once."""
    wide = np.zeros(arrays[0].size, NUMPY.get(dtype.accumulator, np.int64))
    _core.kernels.widen(int(dtype), wide, np.ascontiguousarray(arrays[0]))
    for array in arrays[1:]:
        _core.kernels.accumulate(int(op), int(dtype), wide, np.ascontiguousarray(array))
    out = np.zeros_like(arrays[0])
    _core.kernels.finalize(int(dtype), out, wide, 1)
    return out


def _sum_dense(dtype: DType, payloads: Sequence[bytes]) -> bytes:
    assert len({len(payload) for payload in payloads}) == 1
    return _reduced(dtype, Op.SUM, [np.frombuffer(payload, NUMPY[dtype]) for payload in payloads]).tobytes()


def by_reference(codec: Codec, xs: Sequence[Floats], key: int = 7, number: int = 3, factor: float = 1.0) -> Round:
    """The round of as many ranks as there are `xs`, by the reference."""
    world, numel = len(xs), xs[0].size
    draws = [Draw(key, number, rank) for rank in range(world)]
    plan = codec.plan(numel, world)
    agreed = np.zeros(0, np.float32)
    if plan.prelude:
        preludes = [codec.prepare(x, draw, world) for x, draw in zip(xs, draws, strict=True)]
        agreed = _reduced(plan.prelude_dtype, plan.prelude_op, preludes)
    payloads = [codec.encode(x, draw, agreed, world) for x, draw in zip(xs, draws, strict=True)]
    residuals = [
        codec.residual(x, draw, agreed, payload, world)
        for x, draw, payload in zip(xs, draws, payloads, strict=True)
    ]  # fmt: skip
    if codec.trait is Trait.DENSE:
        assert plan.dense is not None
        result = _sum_dense(plan.dense, payloads)
    else:
        accumulator = codec.reset(numel, world)
        for payload in payloads:
            accumulator = codec.accumulate(accumulator, payload, numel, world)
        result = codec.emit(accumulator, world, Draw(key, number, SERVER_RANK), numel, world)
    out = codec.decode(result, world, draws[0], agreed, numel, world, factor)
    return Round(payloads, residuals, agreed, result, out)


class Native:
    """The native twin of a codec, with the reference's calls."""

    def __init__(self, codec: Codec, world: int) -> None:
        self.core = _core.Codec(codec.spec(), world)
        self.world = world

    def encode(self, x: Floats, draw: Draw, agreed: NDArray[Any]) -> tuple[bytes, Floats]:
        """Payload and residual."""
        payload = np.full(self.core.plan(x.size)["payload"], 0xA5, np.uint8)
        residual = np.empty_like(x)
        size = self.core.encode_with_residual(x, (draw.key, draw.round, draw.rank), agreed, payload, residual)
        return payload[:size].tobytes(), residual

    def sum(self, payloads: Sequence[bytes], numel: int, draw: Draw) -> bytes:
        """What a server makes of them."""
        plan = self.core.plan(numel)
        if "dense" in plan:
            return _sum_dense(DType(plan["dense"]), payloads)
        accumulator = _aligned(plan["accumulator"])
        self.core.reset(numel, accumulator)
        for payload in payloads:
            self.core.accumulate(numel, np.frombuffer(payload, np.uint8), accumulator)
        result = np.full(plan["result"], 0xA5, np.uint8)
        size = self.core.emit(numel, len(payloads), (draw.key, draw.round, draw.rank), accumulator, result)
        return result[:size].tobytes()

    def decode(
        self, result: bytes, draw: Draw, agreed: NDArray[Any], numel: int, factor: float = 1.0, count: int = 0
    ) -> Floats:
        """The sum of `count` contributions (0: `world`), times `factor`."""
        out = np.full(numel, np.nan, np.float32)
        where = (draw.key, draw.round, draw.rank)
        self.core.decode(np.frombuffer(result, np.uint8), count or self.world, where, agreed, factor, out)
        return out


def natively(codec: Codec, xs: Sequence[Floats], key: int = 7, number: int = 3, factor: float = 1.0) -> Round:
    """The same round by the native core."""
    world, numel = len(xs), xs[0].size
    native = Native(codec, world)
    draws = [Draw(key, number, rank) for rank in range(world)]
    plan = native.core.plan(numel)
    agreed = np.zeros(0, np.float32)
    if plan["prelude"]:
        dtype = DType(plan["prelude_dtype"])
        preludes = [np.zeros(plan["prelude"] // dtype.itemsize, NUMPY[dtype]) for _ in xs]
        for x, draw, prelude in zip(xs, draws, preludes, strict=True):
            native.core.prepare(x, (draw.key, draw.round, draw.rank), prelude)
        agreed = _reduced(dtype, Op(plan["prelude_op"]), preludes)
    encoded = [native.encode(x, draw, agreed) for x, draw in zip(xs, draws, strict=True)]
    payloads = [payload for payload, _ in encoded]
    result = native.sum(payloads, numel, Draw(key, number, SERVER_RANK))
    out = native.decode(result, draws[0], agreed, numel, factor)
    return Round(payloads, [residual for _, residual in encoded], agreed, result, out)


def _aligned(nbytes: int) -> NDArray[np.uint8]:
    memory = np.full(nbytes + 64, 0xA5, np.uint8)
    begin = -memory.ctypes.data % 64
    return memory[begin : begin + nbytes]


def nmse(xs: Sequence[Floats], out: Floats) -> float:
    """Squared error of the mean of `xs`, relative to its own square; `out` is the estimate of the sum."""
    mean = np.mean([x.astype(np.float64) for x in xs], axis=0)
    return float(np.sum((out / len(xs) - mean) ** 2) / np.sum(mean**2))
