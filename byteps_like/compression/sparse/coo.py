"""Indices and values of what isn't zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from byteps_like.compression.codec import Codec, Draw, Floats, PayloadPlan, Trait, check_length
from byteps_like.compression.sparse.sparse import WHOLE_PARTITION, UnionSum, checked_indices, magnitudes, words_of
from byteps_like.errors import CorruptError


@dataclass(frozen=True)
class Coo(Codec):
    """64 bits for each element that isn't zero: lossless, for partitions with few and scattered ones.

    Payload: a 32-bit count; as many indices, 32 bits each, ascending; their values. Where that would take more bytes
    than the elements do: 0xFFFFFFFF, and all elements. A server answers with the union. The key-value form of Fei et
    al., "Efficient Sparse Collective Communication ..." (OmniReduce, SIGCOMM 2021), as one message.
    """

    name: ClassVar[str] = "coo"
    id: ClassVar[int] = 20
    trait: ClassVar[Trait] = Trait.MERGE
    biased: ClassVar[bool] = False
    variable: ClassVar[bool] = True
    source: ClassVar[str] = "Fei et al. (OmniReduce), SIGCOMM 2021"

    @override
    def plan(self, numel: int, world: int) -> PayloadPlan:
        size = 4 + 4 * numel
        return PayloadPlan(payload=size, result=size, accumulator=4 * (numel + 2 * words_of(numel)))

    @override
    def encode(self, x: Floats, draw: Draw, agreed: NDArray[Any], world: int) -> bytes:
        return _store(x, magnitudes(x) != 0)

    @override
    def residual(self, x: Floats, draw: Draw, agreed: NDArray[Any], payload: bytes, world: int) -> Floats:
        return np.zeros_like(x)

    @override
    def decode(
        self, result: bytes, count: int, draw: Draw, agreed: NDArray[Any], numel: int, world: int, factor: float = 1.0
    ) -> Floats:
        out = np.zeros(numel, np.float32)
        where, values = self._load(result, numel)
        out[where] = np.float32(0) + np.float32(factor) * values
        return out

    @override
    def reset(self, numel: int, world: int) -> Any:
        return UnionSum.empty(numel)

    @override
    def accumulate(self, accumulator: Any, payload: bytes, numel: int, world: int) -> Any:
        accumulator.add(*self._load(payload, numel))
        return accumulator

    @override
    def emit(self, accumulator: Any, count: int, draw: Draw, numel: int, world: int) -> bytes:
        return _store(accumulator.sums, accumulator.came)

    def _load(self, payload: bytes, numel: int) -> tuple[NDArray[np.bool_], Floats]:
        if len(payload) < 4:
            raise CorruptError(f"{self.name}: a payload without a head")
        count = int(np.frombuffer(payload[:4], np.uint32)[0])
        if count == WHOLE_PARTITION:
            check_length(self.name, payload, 4 + 4 * numel)
            return np.ones(numel, bool), np.frombuffer(payload, np.float32, offset=4)
        check_length(self.name, payload, 4 + 8 * count)
        where = np.zeros(numel, bool)
        where[checked_indices(self.name, np.frombuffer(payload, np.uint32, count, 4), numel)] = True
        return where, np.frombuffer(payload, np.float32, count, 4 + 4 * count)


def _store(x: Floats, where: NDArray[np.bool_]) -> bytes:
    indices = np.flatnonzero(where).astype(np.uint32)
    if 2 * indices.size > x.size:
        return np.uint32(WHOLE_PARTITION).tobytes() + x.tobytes()
    return np.uint32(indices.size).tobytes() + indices.tobytes() + x[indices].tobytes()
