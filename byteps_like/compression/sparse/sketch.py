"""A count sketch of what isn't zero, in integers, and the index: summed as they are, taken apart by peeling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from byteps_like.compression.codec import Codec, Draw, Floats, PayloadPlan, Trait, check_length
from byteps_like.compression.random import random_words, stream_of
from byteps_like.compression.sparse.sparse import magnitudes, to_flags, to_words, words_of
from byteps_like.dtypes import DType, Op
from byteps_like.errors import CapacityError, CorruptError

_HASHES = 3
_FEW_KEYS = 2048
_NOT_FINITE = 127
_WRAP = np.int64(1) << np.int64(32)

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Sketch(Codec):
    """One phase, of a fixed size: 1 bit per element, and 1.3 * 32 for each of the share `density` that isn't zero.

    Values are int32, scaled by a power of two per `block` elements: their biased exponents, less 128, are the
    prelude, of which the largest counts. Sums are exact in any order. Each value is added, with a sign, to one cell
    of each of three segments; who has the index takes out values that are alone in a cell until none is left. If more
    than `density` of the elements aren't zero on all ranks together that may fail, with a CapacityError: take 1.4
    times the density of the last step's union, or the codec bitmap, which needs no guess. Payload: a bit per element
    in 32-bit words, cells; where these would be as many as the elements (as with `density` 1): the integers of all
    elements. Li et al., "Accelerating Distributed Deep Learning using Lossless Homomorphic Compression" (arXiv
    2402.07529), in integers.
    """

    name: ClassVar[str] = "sketch"
    id: ClassVar[int] = 18
    trait: ClassVar[Trait] = Trait.WIDENING
    biased: ClassVar[bool] = False
    source: ClassVar[str] = "Li et al., arXiv 2402.07529"

    block: int = 256
    density: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.density <= 1 or self.block < 1:
            raise ValueError("density must be from 0 to 1, block at least 1")

    @override
    def plan(self, numel: int, world: int) -> PayloadPlan:
        size = 4 * (self._index(numel) + self.cells(numel))
        prelude = -(-numel // self.block)
        return PayloadPlan(size, size, accumulator=size, prelude=prelude, prelude_dtype=DType.INT8, prelude_op=Op.MAX)

    @override
    def prepare(self, x: Floats, draw: Draw, world: int) -> NDArray[Any]:
        largest = np.maximum.reduceat(magnitudes(x), np.arange(0, x.size, self.block))
        return ((largest >> np.uint32(23)).astype(np.int16) - 128).astype(np.int8)

    @override
    def encode(self, x: Floats, draw: Draw, agreed: NDArray[Any], world: int) -> bytes:
        integers = self._quantised(x, agreed, world)
        if self._is_plain(x.size):
            return _words(integers).tobytes()
        live = magnitudes(x) != 0
        keys = np.flatnonzero(live)
        cells, signs = self.places(keys, x.size, draw)
        sums = np.zeros(self.cells(x.size), np.int64)
        np.add.at(sums, cells, signs * integers[keys])
        return to_words(live).tobytes() + _words(sums).tobytes()

    @override
    def residual(self, x: Floats, draw: Draw, agreed: NDArray[Any], payload: bytes, world: int) -> Floats:
        return x - self._values(self._quantised(x, agreed, world), agreed, world)

    def decode(
        self, result: bytes, count: int, draw: Draw, agreed: NDArray[Any], numel: int, world: int, factor: float = 1.0
    ) -> Floats:
        """See Codec. CapacityError: not all values could be told apart."""
        check_length(self.name, result, self.plan(numel, world).result)
        integers = np.frombuffer(result, np.int32).astype(np.int64)
        where = np.ones(numel, bool)
        if not self._is_plain(numel):
            words = np.frombuffer(result, np.uint32, self._index(numel))
            where = to_flags(words, numel)
            if (to_words(where) != words).any():
                raise CorruptError(f"{self.name}: bits set beyond the last element")
            sums, integers = integers[words.size :], np.zeros(numel, np.int64)
            integers[where] = self._peeled(sums, np.flatnonzero(where), numel, draw)
        values = np.float32(0) + np.float32(factor) * self._values(integers, agreed, world)
        return np.where(where, values, np.float32(0))

    @override
    def reset(self, numel: int, world: int) -> Any:
        return np.zeros(self._index(numel), np.uint32), np.zeros(self.cells(numel), np.uint32)

    @override
    def accumulate(self, accumulator: Any, payload: bytes, numel: int, world: int) -> Any:
        check_length(self.name, payload, self.plan(numel, world).payload)
        words, (bits, cells) = np.frombuffer(payload, np.uint32), accumulator
        return bits | words[: bits.size], cells + words[bits.size :]

    @override
    def emit(self, accumulator: Any, count: int, draw: Draw, numel: int, world: int) -> bytes:
        return b"".join(words.tobytes() for words in accumulator)

    def places(self, keys: NDArray[np.int64], numel: int, draw: Draw) -> tuple[Integers, Integers]:
        """A row per hash: the cell of each key, and its sign there."""
        words = np.stack([random_words(stream_of(self.seed, draw, j, shared=True), keys) for j in range(_HASHES)])
        segment = self._segment(numel)
        cells = (words.astype(np.uint64) * np.uint64(segment) >> np.uint64(32)).astype(np.int64)
        return cells + segment * np.arange(_HASHES)[:, None], 1 - 2 * (words & np.uint32(1)).astype(np.int64)

    def cells(self, numel: int) -> int:
        """Integers of a payload."""
        return numel if self._is_plain(numel) else _HASHES * self._segment(numel)

    def _peeled(self, sums: Integers, keys: NDArray[np.int64], numel: int, draw: Draw) -> Integers:
        cells, signs = self.places(keys, numel, draw)
        values, left, _ = peel(sums, cells, signs)
        if left:
            raise CapacityError(f"{self.name}: {left} of {keys.size} values can't be told apart: raise density")
        if (sums % _WRAP).any():
            raise CorruptError(f"{self.name}: cells that no element accounts for")
        return values

    def _keys(self, numel: int) -> int:
        return max(1, int(self.density * numel))

    def _segment(self, numel: int) -> int:
        keys = self._keys(numel)
        return -(-7 * keys // 12) + 64 if keys < _FEW_KEYS else -(-13 * keys // 30)

    def _is_plain(self, numel: int) -> bool:
        return _HASHES * self._segment(numel) >= numel

    def _index(self, numel: int) -> int:
        return 0 if self._is_plain(numel) else words_of(numel)

    def _shifts(self, agreed: NDArray[Any], numel: int, world: int) -> Integers:
        exponents = np.repeat(agreed.astype(np.int64), self.block)[:numel]
        return 156 - (world - 1).bit_length() - np.maximum(1, exponents + 128)

    def _quantised(self, x: Floats, agreed: NDArray[Any], world: int) -> Integers:
        finite = np.repeat(agreed != _NOT_FINITE, self.block)[: x.size]
        scaled = np.where(finite, np.ldexp(x.astype(np.float64), self._shifts(agreed, x.size, world)), 0)
        return np.rint(scaled).astype(np.int64)

    def _values(self, integers: Integers, agreed: NDArray[Any], world: int) -> Floats:
        finite = np.repeat(agreed != _NOT_FINITE, self.block)[: integers.size]
        scaled = np.ldexp(integers.astype(np.float64), -self._shifts(agreed, integers.size, world))
        return np.where(finite, scaled, np.nan).astype(np.float32)


def peel(sums: Integers, cells: Integers, signs: Integers) -> tuple[Integers, int, int]:
    """Takes values out of `sums` (in place) round by round. Returns them, how many are left in it, and the rounds."""
    values, alive, rounds = np.zeros(cells.shape[1], np.int64), np.arange(cells.shape[1]), 0
    keys = np.bincount(cells.ravel(), minlength=sums.size)
    while alive.size:
        single = keys[cells[:, alive]] == 1
        ready = single.any(axis=0)
        if not ready.any():
            break
        taken, hashes = alive[ready], single[:, ready].argmax(axis=0)
        values[taken] = sums[cells[hashes, taken]] * signs[hashes, taken]
        np.subtract.at(sums, cells[:, taken], signs[:, taken] * values[taken])
        np.subtract.at(keys, cells[:, taken], 1)
        alive, rounds = alive[~ready], rounds + 1
    return (values + _WRAP // 2) % _WRAP - _WRAP // 2, int(alive.size), rounds


def _words(integers: Integers) -> NDArray[np.uint32]:
    return (integers % _WRAP).astype(np.uint32)
