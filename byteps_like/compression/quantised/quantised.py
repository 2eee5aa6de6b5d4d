"""What int, qsgd, ternary and dithering have in common: small whole numbers, times a range that a block shares.

Numbers -levels to levels are stored plus `levels`, in 2, 4 or 8 bits: in groups of 32 * 8/bits elements, whose byte j
holds elements j, j + 32, j + 64, ... from its lowest bit up. The last group has as many bytes as it needs.

Own scale (REENCODE): payload = the numbers of all elements, then the ranges as fp32. Shared scale (WIDENING): the
ranges' maximum over all ranks is the prelude, a payload is the numbers alone, and a result their sums, in 8, 16 or 32
bits, as many as the world needs.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from byteps_like.compression.codec import Draw, Floats, PayloadPlan, ReencodeCodec, Trait, check_length
from byteps_like.compression.lanes import lane_sum
from byteps_like.compression.random import random_words, stream_of, to_unit
from byteps_like.dtypes import DType, Op

_LEAST_RANGE = np.float32(2.0**-100)
"""Ranges below it count as zero, so that levels / range is finite."""


@dataclass(frozen=True)
class Grid:
    """Which levels there are, and how an element becomes one.

    With `rounding` "natural" number q stands for +-2^(|q| - levels) times the range, else for q / levels of it.
    """

    levels: int
    rounding: Literal["nearest", "stochastic", "natural"]

    @property
    def bits(self) -> int:
        """Of a number: 2, 4 or 8."""
        return 2 if self.levels <= 1 else 4 if self.levels <= 7 else 8

    @property
    def units(self) -> np.float32:
        """The range is so many times what number 1 (natural: the greatest) stands for."""
        return np.float32(1 if self.rounding == "natural" else self.levels)

    def number_bytes(self, numel: int) -> int:
        """Of the numbers of so many elements."""
        group = 32 * 8 // self.bits
        return numel // group * 32 + min(numel % group, 32)

    def round(self, x: Floats, inverse: Floats, stream: tuple[int, int]) -> NDArray[np.int32]:
        """`x * inverse` as stored numbers, 0 to 2 * levels."""
        scaled = x * inverse
        if self.rounding == "nearest":
            whole = (scaled + np.float32(1.5 * 2**23)).view(np.int32) - np.int32(0x4B400000)
            return whole + np.int32(self.levels)
        words = random_words(stream, x.size)
        if self.rounding == "stochastic":
            return self._within(((scaled + self.units) + to_unit(words)).astype(np.int32))
        magnitude = scaled.view(np.uint32) & np.uint32(0x7FFFFFFF)
        above = ((magnitude + (words >> np.uint32(9))) >> np.uint32(23)).astype(np.int32) - 127 + self.levels
        is_above = (magnitude >> np.uint32(23)).astype(np.int32) - 127 + self.levels >= 1
        low = np.where(is_above, np.float32(0), magnitude.view(np.float32))
        below = (low * np.float32(2.0 ** (self.levels - 1)) + to_unit(words)).astype(np.int32)
        level = np.minimum(np.where(is_above, above, below), self.levels)
        return self._within(np.where(np.signbit(scaled), -level, level) + self.levels)

    def _within(self, stored: NDArray[Any]) -> NDArray[np.int32]:
        held: NDArray[np.int32] = np.minimum(np.maximum(stored, 0), 2 * self.levels).astype(np.int32)
        return held

    def values(self, stored: NDArray[Any]) -> Floats:
        """What stored numbers stand for, in units."""
        level = stored.astype(np.int32) - self.levels
        if self.rounding != "natural":
            return level.astype(np.float32)
        powers = np.ldexp(np.float32(1), np.abs(level) - self.levels).astype(np.float32)
        return np.copysign(np.where(level == 0, np.float32(0), powers), level).astype(np.float32)

    def pack(self, stored: NDArray[Any]) -> bytes:
        """The bytes of stored numbers."""
        planes = 8 // self.bits
        padded = np.zeros(-(-stored.size // (32 * planes)) * 32 * planes, np.uint8)
        padded[: stored.size] = stored
        groups = padded.reshape(-1, planes, 32) << (np.arange(planes, dtype=np.uint8) * self.bits)[:, None]
        return bytes(np.bitwise_or.reduce(groups, axis=1).tobytes()[: self.number_bytes(stored.size)])

    def unpack(self, numbers: bytes, numel: int) -> NDArray[np.uint8]:
        """Stored numbers from their bytes."""
        planes = 8 // self.bits
        padded = np.zeros(-(-numel // (32 * planes)) * 32, np.uint8)
        padded[: len(numbers)] = np.frombuffer(numbers, np.uint8)
        shifted = padded.reshape(-1, 1, 32) >> (np.arange(planes, dtype=np.uint8) * self.bits)[:, None]
        return (shifted & np.uint8((1 << self.bits) - 1)).reshape(-1)[:numel]


@dataclass(frozen=True)
class Quantised(ReencodeCodec):
    """Subclasses say the grid, how a block's range is found, and whether ranks share it."""

    block: int = 256
    """Elements that share a range, a multiple of 128; 0: the whole partition."""
    seed: int = 0

    @property
    @abstractmethod
    def grid(self) -> Grid:
        """The levels."""

    @property
    def shared(self) -> bool:
        """Whether all ranks use the same ranges."""
        return False

    @property
    @override
    def trait(self) -> Trait:  # type: ignore[override]
        return Trait.WIDENING if self.shared else Trait.REENCODE

    @property
    @override
    def biased(self) -> bool:  # type: ignore[override]
        return self.grid.rounding == "nearest" and self.grid.bits < 8

    def range_of(self, x: Floats) -> np.float32:
        """Of a block, all finite: its greatest magnitude, if a subclass doesn't say otherwise."""
        return np.float32(np.abs(x).max())

    @override
    def plan(self, numel: int, world: int) -> PayloadPlan:
        numbers, ranges = self.grid.number_bytes(numel), 4 * len(self._firsts(numel))
        if not self.shared:
            return PayloadPlan(payload=numbers + ranges, result=numbers + ranges, accumulator=4 * numel)
        sums = self._sum_dtype(world).itemsize * numel
        return PayloadPlan(numbers, sums, sums, prelude=ranges, prelude_dtype=DType.FLOAT32, prelude_op=Op.MAX)

    @override
    def prepare(self, x: Floats, draw: Draw, world: int) -> NDArray[Any]:
        return self._ranges(x)

    @override
    def encode(self, x: Floats, draw: Draw, agreed: NDArray[Any], world: int) -> bytes:
        ranges = agreed if self.shared else self._ranges(x)
        usable = np.isfinite(ranges) & (ranges >= _LEAST_RANGE)
        inverse = np.zeros_like(ranges)
        inverse[usable] = self.grid.units / ranges[usable]
        each = self._each(usable, x.size)
        stored = self.grid.round(x, self._each(inverse, x.size), stream_of(self.seed, draw, 0, shared=False))
        numbers = self.grid.pack(np.where(each, stored, self.grid.levels))
        return numbers if self.shared else numbers + ranges.tobytes()

    @override
    def residual(self, x: Floats, draw: Draw, agreed: NDArray[Any], payload: bytes, world: int) -> Floats:
        if not self.shared:
            return super().residual(x, draw, agreed, payload, world)
        return x + self._steps(agreed, x.size, -1.0) * self.grid.values(self.grid.unpack(payload, x.size))

    @override
    def decode_one(self, payload: bytes, numel: int, factor: float) -> Floats:
        check_length(self.name, payload, self.plan(numel, 1).payload)
        numbers = self.grid.number_bytes(numel)
        steps = self._steps(np.frombuffer(payload[numbers:], np.float32), numel, factor)
        return steps * self.grid.values(self.grid.unpack(payload[:numbers], numel))

    @override
    def decode(
        self, result: bytes, count: int, draw: Draw, agreed: NDArray[Any], numel: int, world: int, factor: float = 1.0
    ) -> Floats:
        if not self.shared:
            return super().decode(result, count, draw, agreed, numel, world, factor)
        check_length(self.name, result, self.plan(numel, world).result)
        sums = np.frombuffer(result, self._sum_dtype(world)).astype(np.int64) - self.grid.levels * count
        return self._steps(agreed, numel, factor) * sums.astype(np.float32)

    @override
    def reset(self, numel: int, world: int) -> Any:
        return np.zeros(numel, self._sum_dtype(world) if self.shared else np.float32)

    @override
    def accumulate(self, accumulator: Any, payload: bytes, numel: int, world: int) -> Any:
        if not self.shared:
            return super().accumulate(accumulator, payload, numel, world)
        check_length(self.name, payload, self.plan(numel, world).payload)
        return accumulator + self.grid.unpack(payload, numel).astype(accumulator.dtype)

    @override
    def emit(self, accumulator: Any, count: int, draw: Draw, numel: int, world: int) -> bytes:
        return bytes(accumulator.tobytes()) if self.shared else super().emit(accumulator, count, draw, numel, world)

    def _firsts(self, numel: int) -> range:
        return range(0, numel, self.block or numel)

    def _each(self, of_block: NDArray[Any], numel: int) -> NDArray[Any]:
        return np.repeat(of_block, self.block or numel)[:numel]

    def _ranges(self, x: Floats) -> Floats:
        """NaN where anything in the block isn't finite."""
        size, ranges = self.block or x.size, []
        for first in self._firsts(x.size):
            block = x[first : first + size]
            found = self.range_of(block) if np.isfinite(block).all() else np.float32(np.nan)
            ranges.append(
                np.float32(0) if found < _LEAST_RANGE else found if np.isfinite(found) else np.float32(np.nan)
            )
        return np.array(ranges, np.float32)

    def _steps(self, ranges: Floats, numel: int, factor: float) -> Floats:
        return self._each(np.float32(factor) * (ranges / self.grid.units), numel)

    def _sum_dtype(self, world: int) -> np.dtype[Any]:
        most = 2 * self.grid.levels * world
        return np.dtype(np.uint8 if most <= 0xFF else np.uint16 if most <= 0xFFFF else np.uint32)


def euclidean(x: Floats) -> np.float32:
    """The norm, squares summed in fp64."""
    return np.float32(np.sqrt(lane_sum(x.astype(np.float64) ** 2)))


def root_mean_square(x: Floats) -> np.float32:
    """The root of the mean square, squares summed in fp64."""
    return np.float32(np.sqrt(lane_sum(x.astype(np.float64) ** 2) / x.size))
