"""The elements that any rank has other than zero, in an order that all know: lossless, summed by any reduction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from byteps_like.compression.codec import Codec, Draw, Floats, PayloadPlan, Trait, check_length
from byteps_like.compression.sparse.sparse import magnitudes, to_flags, to_words, words_of
from byteps_like.dtypes import DType, Op


@dataclass(frozen=True)
class Bitmap(Codec):
    """Which elements aren't zero is agreed beforehand, 1 bit each; then 32 bits for each that is so on any rank.

    The prelude is a bit per element in 32-bit words, the first in the lowest, combined by "or". Payload: the values of
    the union, in order; a zero where it is empty. Its size changes from round to round, and is the same on all ranks.
    Li et al., "Accelerating Distributed Deep Learning using Lossless Homomorphic Compression" (arXiv 2402.07529), with
    the values in the order of the index instead of a sketch.
    """

    name: ClassVar[str] = "bitmap"
    id: ClassVar[int] = 17
    trait: ClassVar[Trait] = Trait.DENSE
    biased: ClassVar[bool] = False
    variable: ClassVar[bool] = True
    source: ClassVar[str] = "Li et al., arXiv 2402.07529"

    @override
    def plan(self, numel: int, world: int) -> PayloadPlan:
        return PayloadPlan(
            payload=4 * numel,
            result=4 * numel,
            prelude=4 * words_of(numel),
            prelude_dtype=DType.UINT32,
            prelude_op=Op.BOR,
            dense=DType.FLOAT32,
        )

    @override
    def prepare(self, x: Floats, draw: Draw, world: int) -> NDArray[Any]:
        return to_words(magnitudes(x) != 0)

    @override
    def encode(self, x: Floats, draw: Draw, agreed: NDArray[Any], world: int) -> bytes:
        values = x[to_flags(agreed, x.size)]
        return (values if values.size else np.zeros(1, np.float32)).tobytes()

    @override
    def residual(self, x: Floats, draw: Draw, agreed: NDArray[Any], payload: bytes, world: int) -> Floats:
        return np.zeros_like(x)

    @override
    def decode(
        self, result: bytes, count: int, draw: Draw, agreed: NDArray[Any], numel: int, world: int, factor: float = 1.0
    ) -> Floats:
        union = to_flags(agreed, numel)
        stored = int(union.sum())
        check_length(self.name, result, 4 * max(stored, 1))
        out = np.zeros(numel, np.float32)
        out[union] = np.float32(0) + np.float32(factor) * np.frombuffer(result, np.float32, stored)
        return out
