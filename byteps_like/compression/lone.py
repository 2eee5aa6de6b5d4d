"""Codecs for contributions that are decoded one by one: any codec, as if there were one rank. Native where there is a
core, the references in NumPy for portable workers; both give the same bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from byteps_like.compression.codec import Codec, Draw, Floats, PayloadPlan, Trait

try:
    import byteps_like._core as _core
except ImportError:  # portable workers encode, too
    _core = None

Bytes = NDArray[np.uint8]
_WORLD = 1


class LoneCodec(ABC):
    """Arrays are flat and C-contiguous, of one element at least. Raises as codecs do. Thread-safe."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec

    def plan(self, numel: int) -> PayloadPlan:
        """Sizes of a payload, which is a bound, and of the prelude."""
        return self.codec.plan(numel, _WORLD)

    @property
    def _is_summed(self) -> bool:
        """Whether a payload is no result yet."""
        return self.codec.trait in (Trait.WIDENING, Trait.VOTE)

    @abstractmethod
    def encode(self, x: Floats, draw: Draw, prelude: Bytes, body: Bytes, left: Floats | None = None) -> int:
        """Fills prelude and body, and returns how many bytes of that the payload has. `left`, which `x` may be, becomes
        what it doesn't say of `x`."""

    @abstractmethod
    def decode(self, body: Bytes, draw: Draw, prelude: Bytes, out: Floats) -> None:
        """What a payload says."""


class NativeCodec(LoneCodec):
    """By the core."""

    def __init__(self, codec: Codec) -> None:
        super().__init__(codec)
        self._native = _core.Codec(codec.spec(), _WORLD)

    @override
    def encode(self, x: Floats, draw: Draw, prelude: Bytes, body: Bytes, left: Floats | None = None) -> int:
        drawn = (draw.key, draw.round, draw.rank)
        if prelude.size:
            self._native.prepare(x, drawn, prelude)
        if left is None:
            return int(self._native.encode(x, drawn, prelude, body))
        return int(self._native.encode_with_residual(x, drawn, prelude, body, left))

    @override
    def decode(self, body: Bytes, draw: Draw, prelude: Bytes, out: Floats) -> None:
        drawn = (draw.key, draw.round, draw.rank)
        if self._is_summed:
            plan = self.plan(out.size)
            total, result = aligned(plan.accumulator), np.empty(plan.result, np.uint8)
            self._native.reset(out.size, total)
            self._native.accumulate(out.size, body, total)
            body = result[: self._native.emit(out.size, 1, drawn, total, result)]
        self._native.decode(body, 1, drawn, prelude, 1.0, out)


class ReferenceCodec(LoneCodec):
    """By the references."""

    @override
    def encode(self, x: Floats, draw: Draw, prelude: Bytes, body: Bytes, left: Floats | None = None) -> int:
        if prelude.size:
            prelude[:] = np.ascontiguousarray(self.codec.prepare(x, draw, _WORLD)).view(np.uint8)
        agreed = self._agreed(prelude, x.size)
        payload = self.codec.encode(x, draw, agreed, _WORLD)
        body[: len(payload)] = np.frombuffer(payload, np.uint8)
        if left is not None:
            left[:] = self.codec.residual(x, draw, agreed, payload, _WORLD)
        return len(payload)

    @override
    def decode(self, body: Bytes, draw: Draw, prelude: Bytes, out: Floats) -> None:
        numel, payload = out.size, body.tobytes()
        if self._is_summed:
            total = self.codec.accumulate(self.codec.reset(numel, _WORLD), payload, numel, _WORLD)
            payload = self.codec.emit(total, 1, draw, numel, _WORLD)
        out[:] = self.codec.decode(payload, 1, draw, self._agreed(prelude, numel), numel, _WORLD)

    def _agreed(self, prelude: Bytes, numel: int) -> NDArray[Any]:
        return prelude.view(self.plan(numel).prelude_dtype.name.lower())


@lru_cache(maxsize=64)
def lone(codec: Codec) -> LoneCodec:
    """That codec, by the fastest means that there are here."""
    return ReferenceCodec(codec) if _core is None else NativeCodec(codec)


def aligned(nbytes: int) -> Bytes:
    """Memory that begins at a multiple of 64 bytes, as accumulators need it."""
    memory = np.empty(nbytes + 64, np.uint8)
    begin = -memory.ctypes.data % 64
    return memory[begin : begin + nbytes]
