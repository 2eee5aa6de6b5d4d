"""Tensor homomorphic compression: 2 to 4 bits per element up, sums of them down, nothing decoded on the way."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from byteps_like.compression.codec import Codec, Draw, Floats, PayloadPlan, Trait, check_length
from byteps_like.compression.quantised.codes import pack, sum_order, unpack
from byteps_like.compression.quantised.rotation import (
    Block,
    Stream,
    blocks,
    energy,
    normalising_factor,
    padded,
    rotate,
    rotate_back,
)
from byteps_like.compression.quantised.thc_table import CLAMPS, LARGEST_SUM, table_for
from byteps_like.compression.random import random_words, stream_of
from byteps_like.errors import CorruptError, InvalidArgumentError

_MOST = 1 << 15
_SIGNS, _ROUNDING = 1, 2


@dataclass(frozen=True)
class Thc(Codec):
    """`bits` (2 to 4) per element up, 8 down (16 if that many ranks need it).

    Blocks of up to 32768 elements are rotated at random, so that coordinates are nearly normal whatever the gradient
    was; cut off where one in `clamp` (16, 32, 64) is beyond, the block's largest norm among all ranks being the
    prelude; and rounded at random to one of the two points beside them, so that the expectation is the coordinate.
    Points are some of a grid's: `table` names them ("0.4.7.11"), or is "uniform" (all), or "auto": the best there are
    if sums of all ranks are to fit (thc_table.py). Little clamping (64) suits work without error feedback.

    Li et al., "THC: Accelerating Distributed Deep Learning Using Tensor Homomorphic Compression" (NSDI 2024), but with
    a norm per block, since one norm for blocks of unlike energy cuts off the largest of them.
    """

    name: ClassVar[str] = "thc"
    id: ClassVar[int] = 16
    trait: ClassVar[Trait] = Trait.WIDENING
    source: ClassVar[str] = "Li et al., NSDI 2024"

    bits: int = 4
    clamp: int = 32
    seed: int = 0
    table: str = "auto"

    def __post_init__(self) -> None:
        if self.bits not in (2, 3, 4) or self.clamp not in CLAMPS:
            raise ValueError(f"bits must be 2, 3 or 4 and clamp one of {', '.join(map(str, CLAMPS))}")
        if self.table not in ("auto", "uniform"):
            _check(self._written, self.bits)

    @cached_property
    def _written(self) -> tuple[int, ...]:
        return tuple(map(int, self.table.split(".")))

    def points(self, world: int) -> tuple[int, ...]:
        """The table for rounds of `world` contributions.

        Raises InvalidArgumentError if 16 bits can't hold their sums.
        """
        if self.table == "uniform":
            points = tuple(range(1 << self.bits))
        else:
            points = self._automatic(world) if self.table == "auto" else self._written
        if points[-1] * world > LARGEST_SUM[16]:
            raise InvalidArgumentError(f"sums of {world} contributions to {points[-1]} don't fit into 16 bits")
        return points

    def _automatic(self, world: int) -> tuple[int, ...]:
        try:
            return table_for(self.bits, self.clamp, world)
        except ValueError as error:
            raise InvalidArgumentError(str(error)) from None

    def sums(self, world: int) -> type[np.uint8] | type[np.uint16]:
        """What sums of `world` contributions are held in."""
        return np.uint8 if self.points(world)[-1] * world <= LARGEST_SUM[8] else np.uint16

    @override
    def plan(self, numel: int, world: int) -> PayloadPlan:
        result = padded(numel) * np.dtype(self.sums(world)).itemsize
        prelude = 4 * sum(1 for _ in blocks(numel, _MOST))
        return PayloadPlan(payload=padded(numel) // 8 * self.bits, result=result, accumulator=result, prelude=prelude)

    def prepare(self, x: Floats, draw: Draw, world: int) -> NDArray[Any]:
        """The norms of the blocks."""
        return np.array([np.sqrt(energy(x[at.elements])) for at in blocks(x.size, _MOST)], np.float32)

    @override
    def encode(self, x: Floats, draw: Draw, agreed: NDArray[Any], world: int) -> bytes:
        codes = np.zeros(padded(x.size), np.uint32)
        for at, norm in zip(blocks(x.size, _MOST), agreed, strict=True):
            if _usable(norm):
                factor = normalising_factor(norm)
                coordinates = rotate(x, at, self._signs(draw), factor)
                halves = _halves(stream_of(self.seed, draw, _ROUNDING, False), at)
                codes[at.coordinates] = self._places(coordinates, norm, factor, world) + halves >> np.uint32(16)
        return pack(codes, self.bits)

    def _places(self, coordinates: Floats, norm: np.float32, factor: np.float32, world: int) -> NDArray[np.uint32]:
        """Between which points, in units of 2^-16 codes: a sum of ramps, one per run of cells of the same width."""
        points = self.points(world)
        unit = points[-1] / (2 * CLAMPS[self.clamp] * float(norm)) / float(factor)
        place = np.full(coordinates.size, np.float32(0.5))
        for start, width, cells in _runs(points):
            slope = 65536.0 / width
            ramp = coordinates * np.float32(unit * slope) + np.float32((points[-1] / 2 - start) * slope)
            place += np.clip(ramp, np.float32(0), np.float32(65536.0 * cells))
        return place.astype(np.uint32)

    def residual(self, x: Floats, draw: Draw, agreed: NDArray[Any], payload: bytes, world: int) -> Floats:
        """See Codec. A block that is not finite leaves none: it would spoil all rounds that follow."""
        points = np.array(self.points(world))[unpack(payload, self.bits)]
        residual = np.zeros_like(x)
        for at, norm in zip(blocks(x.size, _MOST), agreed, strict=True):
            if _usable(norm):
                residual[at.elements] = x[at.elements] + self._back(points, 1, at, draw, norm, world, -1.0)
        return residual

    def decode(
        self, result: bytes, count: int, draw: Draw, agreed: NDArray[Any], numel: int, world: int, factor: float = 1.0
    ) -> Floats:
        """See Codec. `count` may be less than `world`. A block whose norm is not finite is NaN."""
        check_length(self.name, result, self.plan(numel, world).result)
        if not 1 <= count <= world:
            raise CorruptError(f"thc: a result of {count} contributions, where there are {world} ranks")
        held = np.frombuffer(result, self.sums(world))
        sums = np.empty(held.size, np.int64)
        sums[sum_order(held.size, held.itemsize == 2)] = held
        out = np.zeros(numel, np.float32)
        for at, norm in zip(blocks(numel, _MOST), agreed, strict=True):
            if _usable(norm):
                out[at.elements] = np.float32(0) + self._back(sums, count, at, draw, norm, world, factor)
            elif norm != 0:
                out[at.elements] = np.nan
        return out

    def _back(
        self, sums: NDArray[Any], count: int, at: Block, draw: Draw, norm: np.float32, world: int, factor: float
    ) -> Floats:
        """What sums of points of `count` contributions say of the elements of a block, times `factor`."""
        granularity = self.points(world)[-1]
        unit = float(np.float32(factor)) * CLAMPS[self.clamp] * float(norm) / (float(granularity) * at.padded)
        centred = (2 * sums[at.coordinates]).astype(np.float32) - np.float32(count * granularity)
        return rotate_back(centred, at, self._signs(draw), np.float32(unit))

    def reset(self, numel: int, world: int) -> Any:
        """Zeros."""
        return np.zeros(padded(numel), self.sums(world))

    @override
    def accumulate(self, accumulator: Any, payload: bytes, numel: int, world: int) -> Any:
        check_length(self.name, payload, self.plan(numel, world).payload)
        points = np.array(self.points(world), accumulator.dtype)[unpack(payload, self.bits)]
        return accumulator + points[sum_order(points.size, accumulator.itemsize == 2)]

    @override
    def emit(self, accumulator: Any, count: int, draw: Draw, numel: int, world: int) -> bytes:
        return bytes(accumulator.tobytes())

    def clamped(self, x: Floats, draw: Draw, agreed: NDArray[Any]) -> int:
        """How many coordinates are cut off."""
        found = 0
        for at, norm in zip(blocks(x.size, _MOST), agreed, strict=True):
            if _usable(norm):
                factor = normalising_factor(norm)
                limit = np.float32(CLAMPS[self.clamp] * float(norm) * float(factor))
                found += int(np.sum(np.abs(rotate(x, at, self._signs(draw), factor)) > limit))
        return found

    def _signs(self, draw: Draw) -> Stream:
        return stream_of(self.seed, draw, _SIGNS, True)


def _check(points: tuple[int, ...], bits: int) -> None:
    rises = all(a < b for a, b in pairwise(points))
    if len(points) != 1 << bits or points[0] != 0 or not rises or points[-1] > 255:
        raise ValueError(f"a table for {bits} bits is {1 << bits} numbers up to 255 that rise from 0, as in 0.4.7.11")


def _usable(norm: np.float32) -> bool:
    return bool(norm > 0 and np.isfinite(norm))


def _halves(stream: Stream, at: Block) -> NDArray[np.uint32]:
    """16 random bits per coordinate; two rows of eight share their words."""
    words = random_words(stream, at.begin // 2 + np.arange(at.padded // 2)).reshape(-1, 1, 8)
    return np.concatenate([words & np.uint32(0xFFFF), words >> np.uint32(16)], axis=1).reshape(-1)


def _runs(points: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """Start, width and number of the cells in each run of equal widths."""
    runs: list[tuple[int, int, int]] = []
    for low, high in pairwise(points):
        if runs and runs[-1][1] == high - low:
            start, width, cells = runs[-1]
            runs[-1] = (start, width, cells + 1)
        else:
            runs.append((low, high - low, 1))
    return runs
