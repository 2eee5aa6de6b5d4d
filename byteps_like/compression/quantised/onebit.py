"""Scaled sign: one bit per element and the mean magnitude of each block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from byteps_like.compression.codec import Draw, Floats, PayloadPlan, ReencodeCodec, check_length
from byteps_like.compression.lanes import lane_sum


@dataclass(frozen=True)
class Onebit(ReencodeCodec):
    """`block` elements (a multiple of 32) share a scale. 1 + 32/block bits per element; wants error feedback.

    Payload: a 32-bit word of signs per 32 elements, the first in the lowest bit, 1 for a sign bit; then the scales.
    Seide et al., "1-Bit Stochastic Gradient Descent" (Interspeech 2014); the scale is that of Karimireddy et al.,
    "Error Feedback Fixes SignSGD" (ICML 2019).
    """

    name: ClassVar[str] = "onebit"
    id: ClassVar[int] = 6
    source: ClassVar[str] = "Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019"

    block: int = 1 << 15

    @override
    def plan(self, numel: int, world: int) -> PayloadPlan:
        size = _words(numel) * 4 + -(-numel // self.block) * 4
        return PayloadPlan(payload=size, result=size, accumulator=4 * numel)

    @override
    def encode(self, x: Floats, draw: Draw, agreed: NDArray[Any], world: int) -> bytes:
        bits = np.zeros(_words(x.size) * 32, np.uint8)
        bits[: x.size] = np.signbit(x)
        scales = [_mean_magnitude(x[begin : begin + self.block]) for begin in range(0, x.size, self.block)]
        return np.packbits(bits, bitorder="little").tobytes() + np.array(scales, np.float32).tobytes()

    @override
    def decode_one(self, payload: bytes, numel: int, factor: float) -> Floats:
        check_length(self.name, payload, self.plan(numel, 1).payload)
        words = _words(numel) * 4
        bits = np.unpackbits(np.frombuffer(payload[:words], np.uint8), bitorder="little")[:numel]
        scales = np.float32(factor) * np.frombuffer(payload[words:], np.float32)
        magnitudes = np.repeat(scales, self.block)[:numel]
        return np.where(bits, -magnitudes, magnitudes).astype(np.float32)


def _words(numel: int) -> int:
    return -(-numel // 32)


def _mean_magnitude(x: Floats) -> np.float32:
    return np.float32(lane_sum(np.abs(x).astype(np.float64)) / x.size)
