"""Natural compression: powers of two, rounded stochastically."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from byteps_like.compression.codec import Draw, Floats, PayloadPlan, ReencodeCodec, check_length
from byteps_like.compression.random import random_words, stream_of


@dataclass(frozen=True)
class Natural(ReencodeCodec):
    """9 bits per element: a sign, and an exponent of fp32. Unbiased; the variance is at most 1/8 of the square.

    The fraction of a float is how far it is between two powers of two, so adding 23 random bits to it carries into the
    exponent with that probability. Payload: a 32-bit word of signs per 32 elements, the first in the lowest bit, then a
    byte of exponent for each, 255 for what isn't finite. Horvath et al., "Natural Compression for Distributed Deep
    Learning" (MSML 2022).
    """

    name: ClassVar[str] = "natural"
    id: ClassVar[int] = 9
    biased: ClassVar[bool] = False
    source: ClassVar[str] = "Horvath et al., MSML 2022"

    seed: int = 0

    @override
    def plan(self, numel: int, world: int) -> PayloadPlan:
        size = -(-numel // 32) * 4 + numel
        return PayloadPlan(payload=size, result=size, accumulator=4 * numel)

    @override
    def encode(self, x: Floats, draw: Draw, agreed: NDArray[Any], world: int) -> bytes:
        magnitude = x.view(np.uint32) & np.uint32(0x7FFFFFFF)
        random = random_words(stream_of(self.seed, draw, 0, shared=False), x.size) >> np.uint32(9)
        exponents = np.minimum((magnitude + random) >> np.uint32(23), np.where(np.isfinite(x), 254, 255))
        signs = np.zeros(-(-x.size // 32) * 32, np.uint8)
        signs[: x.size] = np.signbit(x)
        return bytes(np.packbits(signs, bitorder="little").tobytes() + exponents.astype(np.uint8).tobytes())

    @override
    def decode_one(self, payload: bytes, numel: int, factor: float) -> Floats:
        check_length(self.name, payload, self.plan(numel, 1).payload)
        words = -(-numel // 32) * 4
        signs = np.unpackbits(np.frombuffer(payload[:words], np.uint8), bitorder="little")[:numel].astype(np.uint32)
        exponents = np.frombuffer(payload[words:], np.uint8).astype(np.uint32)
        values: Floats = np.float32(factor) * (signs << np.uint32(31) | exponents << np.uint32(23)).view(np.float32)
        return values
