"""Integers with an exponent per block: sums that are the same bits in any order and by any route."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from byteps_like.compression.codec import Codec, Draw, Floats, PayloadPlan, Trait, check_length
from byteps_like.dtypes import DType, Op
from byteps_like.errors import InvalidArgumentError

_ZERO, _TOO_LARGE = -127, 127


@dataclass(frozen=True)
class Fixed(Codec):
    """Integers of `bits` (32 or 16) and one exponent per block, agreed as the maximum over all ranks.

    Elements are multiplied by a power of two such that sums of the whole world fit, and rounded to the nearest integer:
    the error of a sum is at most half of the inverse of that power for each rank; with 32 bits it is smaller than
    that of a sum in fp32. Prelude: per block floor(log2(greatest magnitude)) as int8; -127 for zeros and denormals, 127
    for 2^127 and more and for what isn't finite, which comes out as NaN. Payload: the integers. Sapio et al., "Scaling
    Distributed Machine Learning with In-Network Aggregation" (SwitchML, NSDI 2021).
    """

    name: ClassVar[str] = "fixed"
    id: ClassVar[int] = 4
    trait: ClassVar[Trait] = Trait.DENSE
    source: ClassVar[str] = "Sapio et al. (SwitchML), NSDI 2021"

    bits: int = 32
    block: int = 256

    @property
    @override
    def biased(self) -> bool:  # type: ignore[override]
        return self.bits < 32

    def plan(self, numel: int, world: int) -> PayloadPlan:
        """See Codec. Raises InvalidArgumentError if `world` is too large for sums to fit."""
        self.magnitude(world)
        size = numel * self.bits // 8
        return PayloadPlan(
            payload=size,
            result=size,
            prelude=-(-numel // self.block),
            prelude_dtype=DType.INT8,
            prelude_op=Op.MAX,
            dense=DType.INT32 if self.bits == 32 else DType.INT16,
        )

    def magnitude(self, world: int) -> int:
        """The greatest k such that `world` integers of magnitude 2^k + 1/2 add up to less than 2^(bits - 1)."""
        k = ((((1 << self.bits) - 2) // world - 1) // 2).bit_length() - 1
        if k < 1:
            raise InvalidArgumentError(f"codec {self.spec()}: sums of {world} ranks don't fit")
        return k

    @override
    def prepare(self, x: Floats, draw: Draw, world: int) -> NDArray[Any]:
        exponents = (x.view(np.uint32) >> np.uint32(23) & np.uint32(0xFF)).astype(np.int32) - 127
        most = [exponents[first : first + self.block].max() for first in range(0, x.size, self.block)]
        return np.minimum(most, _TOO_LARGE).astype(np.int8)

    @override
    def encode(self, x: Floats, draw: Draw, agreed: NDArray[Any], world: int) -> bytes:
        shifts = self._each(self._shifts(agreed, world), x.size)
        usable = self._each((agreed > _ZERO) & (agreed < _TOO_LARGE), x.size)
        scaled = np.ldexp(np.where(usable, x, np.float32(0)).astype(np.float64), shifts)
        return bytes(np.rint(scaled).astype(np.int32 if self.bits == 32 else np.int16).tobytes())

    @override
    def residual(self, x: Floats, draw: Draw, agreed: NDArray[Any], payload: bytes, world: int) -> Floats:
        return x + self._values(payload, agreed, x.size, world, -1.0)

    @override
    def decode(
        self, result: bytes, count: int, draw: Draw, agreed: NDArray[Any], numel: int, world: int, factor: float = 1.0
    ) -> Floats:
        return np.float32(0) + self._values(result, agreed, numel, world, factor)

    def _values(self, integers: bytes, agreed: NDArray[Any], numel: int, world: int, factor: float) -> Floats:
        check_length(self.name, integers, numel * self.bits // 8)
        steps = np.ldexp(np.float32(1), -self._shifts(agreed, world)).astype(np.float32)
        steps[agreed <= _ZERO], steps[agreed == _TOO_LARGE] = 0, np.nan
        sums = np.frombuffer(integers, np.int32 if self.bits == 32 else np.int16).astype(np.float32)
        values: Floats = (sums * np.float32(factor)) * self._each(steps, numel)
        return values

    def _shifts(self, agreed: NDArray[Any], world: int) -> NDArray[Any]:
        """Elements are multiplied by 2^shift: held where its inverse is still a normal number."""
        return np.minimum(self.magnitude(world) - (agreed.astype(np.int32) + 1), 126)

    def _each(self, of_block: NDArray[Any], numel: int) -> NDArray[Any]:
        return np.repeat(of_block, self.block)[:numel]
