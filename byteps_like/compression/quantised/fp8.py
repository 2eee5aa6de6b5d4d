"""8-bit floats, each block scaled by a power of two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from byteps_like.compression.codec import Draw, Floats, PayloadPlan, ReencodeCodec, check_length

_NOT_FINITE = 255


@dataclass(frozen=True)
class Fp8(ReencodeCodec):
    """`format` "e4m3" (errors to 2^-4 of an element) or "e5m2" (to 2^-3, but 2^15 times the range): 8 + 8/block bits.

    A block (a power of two from 16 to 2048) is divided by the least power of two that makes its greatest magnitude at
    most 448 (57344). Payload: a byte per element, then a byte per block: that power's exponent plus 127, 255 where the
    block isn't finite. Open Compute Project, "Microscaling Formats (MX) Specification" (2023), where blocks have 32
    elements.
    """

    name: ClassVar[str] = "fp8"
    id: ClassVar[int] = 3
    source: ClassVar[str] = "Open Compute Project, Microscaling Formats, 2023"

    format: str = "e4m3"
    block: int = 32

    @property
    def _mantissa(self) -> int:
        return 3 if self.format == "e4m3" else 2

    @property
    def _least(self) -> int:
        """Exponent of the least normal number."""
        return -6 if self.format == "e4m3" else -14

    @property
    def _top(self) -> int:
        """Exponent of the greatest number."""
        return 8 if self.format == "e4m3" else 15

    @override
    def plan(self, numel: int, world: int) -> PayloadPlan:
        size = numel + -(-numel // self.block)
        return PayloadPlan(payload=size, result=size, accumulator=4 * numel)

    @override
    def encode(self, x: Floats, draw: Draw, agreed: NDArray[Any], world: int) -> bytes:
        blocks = np.zeros((-(-x.size // self.block), self.block), np.float32)
        blocks.reshape(-1)[: x.size] = x
        finite = np.isfinite(blocks).all(axis=1)
        blocks[~finite] = 0
        most = np.abs(blocks).max(axis=1).view(np.int32)
        # Rounded up where the mantissa is above 1.75; never so low that its inverse is beyond fp32.
        exponents = np.maximum(((most + 0x1FFFFF) >> 23) - self._top, 1)
        scaled = np.ldexp(blocks, (127 - exponents)[:, None]).reshape(-1)[: x.size]
        return self._narrow(scaled) + np.where(finite, exponents, _NOT_FINITE).astype(np.uint8).tobytes()

    @override
    def decode_one(self, payload: bytes, numel: int, factor: float) -> Floats:
        check_length(self.name, payload, self.plan(numel, 1).payload)
        exponents = np.frombuffer(payload[numel:], np.uint8)
        powers = np.where(exponents == 0, 0, np.ldexp(np.float32(1), exponents.astype(np.int32) - 127))
        steps = np.float32(factor) * np.where(exponents == _NOT_FINITE, np.nan, powers).astype(np.float32)
        return np.repeat(steps, self.block)[:numel] * self._table()[np.frombuffer(payload[:numel], np.uint8)]

    def _narrow(self, x: Floats) -> bytes:
        """Numbers within the format's as bytes, to the nearest, ties to even."""
        exponents = np.where(x == 0, self._least, np.maximum(np.frexp(x)[1] - 1, self._least))
        places = np.rint(np.ldexp(np.abs(x), self._mantissa - exponents)).astype(np.int32)
        magnitudes = ((exponents - self._least) << self._mantissa) + places
        return bytes((magnitudes | np.signbit(x) << 7).astype(np.uint8).tobytes())

    def _table(self) -> Floats:
        """What the 256 bytes are."""
        magnitudes = np.arange(128)
        exponents, mantissas = magnitudes >> self._mantissa, magnitudes & ((1 << self._mantissa) - 1)
        whole = np.where(exponents > 0, mantissas + (1 << self._mantissa), mantissas)
        values = np.ldexp(whole.astype(np.float32), np.maximum(exponents, 1) - 1 + self._least - self._mantissa)
        if self.format == "e4m3":
            values[127] = np.nan
        else:
            values[124], values[125:] = np.inf, np.nan
        return np.concatenate([values, -values]).astype(np.float32)
