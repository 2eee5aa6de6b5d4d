"""signSGD with majority vote: one bit per element up, and down what most ranks said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from byteps_like.compression.codec import Codec, Draw, Floats, PayloadPlan, Trait, check_length
from byteps_like.compression.lanes import lane_sum
from byteps_like.compression.random import random_words, stream_of

Tally = tuple[NDArray[np.uint16], Floats]
"""Negative signs of each element, and the greatest scale of each block."""


@dataclass(frozen=True)
class Sign(Codec):
    """`block` elements (a multiple of 32) share a magnitude. 1 + 32/block bits per element; biased.

    Payload and result are as those of onebit, but that a result's signs are the majority's, and its magnitudes the
    greatest of all ranks': the mean magnitude of the block, or with `magnitude` "unit" 1 where anything isn't 0, as in
    the paper. Decoded times the number of contributions, so that an average has that magnitude. A tie falls by a coin
    that is the same wherever it is thrown: a bit of the round's shared random stream. An element that is 0 votes for +,
    like onebit's. Bernstein et al., "signSGD with Majority Vote is Communication Efficient And Fault Tolerant" (ICLR
    2019).
    """

    name: ClassVar[str] = "sign"
    id: ClassVar[int] = 7
    trait: ClassVar[Trait] = Trait.VOTE
    source: ClassVar[str] = "Bernstein et al., ICLR 2019"

    block: int = 1 << 15
    magnitude: str = "mean"
    seed: int = 0

    @override
    def plan(self, numel: int, world: int) -> PayloadPlan:
        signs, scales = _words(numel) * 4, -(-numel // self.block) * 4
        return PayloadPlan(signs + scales, signs + scales, world.bit_length() * signs + scales)

    @override
    def encode(self, x: Floats, draw: Draw, agreed: NDArray[Any], world: int) -> bytes:
        scales = [self._scale(x[begin : begin + self.block]) for begin in range(0, x.size, self.block)]
        return _pack(np.signbit(x)) + np.array(scales, np.float32).tobytes()

    @override
    def residual(self, x: Floats, draw: Draw, agreed: NDArray[Any], payload: bytes, world: int) -> Floats:
        return x + self._values(payload, x.size, np.float32(-1))

    @override
    def decode(
        self, result: bytes, count: int, draw: Draw, agreed: NDArray[Any], numel: int, world: int, factor: float = 1.0
    ) -> Floats:
        return np.float32(0) + self._values(result, numel, np.float32(factor) * np.float32(count))

    @override
    def reset(self, numel: int, world: int) -> Tally:
        return np.zeros(numel, np.uint16), np.zeros(-(-numel // self.block), np.float32)

    @override
    def accumulate(self, accumulator: Tally, payload: bytes, numel: int, world: int) -> Tally:
        signs, scales = self._parts(payload, numel)
        return accumulator[0] + signs, np.maximum(accumulator[1], scales)

    @override
    def emit(self, accumulator: Tally, count: int, draw: Draw, numel: int, world: int) -> bytes:
        negatives, scales = accumulator
        coins = _unpack(random_words(stream_of(self.seed, draw, 0, shared=True), _words(numel)).tobytes(), numel)
        winners = np.where(2 * negatives.astype(np.int64) == count, coins, 2 * negatives.astype(np.int64) > count)
        return _pack(winners) + scales.tobytes()

    def _parts(self, payload: bytes, numel: int) -> tuple[NDArray[np.uint8], Floats]:
        check_length(self.name, payload, self.plan(numel, 1).payload)
        words = _words(numel) * 4
        return _unpack(payload[:words], numel), np.frombuffer(payload[words:], np.float32)

    def _values(self, payload: bytes, numel: int, factor: np.float32) -> Floats:
        signs, scales = self._parts(payload, numel)
        magnitudes = np.repeat(factor * scales, self.block)[:numel]
        return np.where(signs, -magnitudes, magnitudes).astype(np.float32)

    def _scale(self, x: Floats) -> np.float32:
        mean = np.float32(lane_sum(np.abs(x).astype(np.float64)) / x.size)
        if not np.isfinite(mean):
            return np.float32(np.nan)
        return np.float32(1) if self.magnitude == "unit" and x.any() else mean


def _words(numel: int) -> int:
    return -(-numel // 32)


def _pack(bits: NDArray[Any]) -> bytes:
    padded = np.zeros(_words(bits.size) * 32, np.uint8)
    padded[: bits.size] = bits
    return np.packbits(padded, bitorder="little").tobytes()


def _unpack(words: bytes, numel: int) -> NDArray[np.uint8]:
    return np.unpackbits(np.frombuffer(words, np.uint8), bitorder="little")[:numel]
