"""Whole chunks of which all ranks choose the same, by the sum of their norms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from byteps_like.compression.codec import Codec, Draw, Floats, PayloadPlan, Trait, check_length
from byteps_like.compression.lanes import lane_sum
from byteps_like.compression.sparse.sparse import largest, magnitudes
from byteps_like.dtypes import DType, Op


@dataclass(frozen=True)
class ChunkTopK(Codec):
    """`ratio` of the chunks of `chunk` elements, at least one: 32 bits per element of theirs. Wants error feedback.

    The prelude is each chunk's L2 norm in fp32, summed over the ranks; the largest are taken, of equal ones the first.
    Payload: these chunks in their order, the partition's last one filled up with zeros (in partitions of more than one
    chunk). Any reduction sums it. Han et al., "Beyond Throughput and Compression Ratios" (TopK Chunked; HotNets 2024).
    """

    name: ClassVar[str] = "chunktopk"
    id: ClassVar[int] = 14
    trait: ClassVar[Trait] = Trait.DENSE
    source: ClassVar[str] = "Han et al., HotNets 2024"

    chunk: int = 256
    ratio: float = 0.01

    def __post_init__(self) -> None:
        if not 0 <= self.ratio <= 1 or self.chunk < 1:
            raise ValueError("ratio must be from 0 to 1, chunk at least 1")

    @override
    def plan(self, numel: int, world: int) -> PayloadPlan:
        size = self._chosen(numel) * min(self.chunk, numel) * 4
        prelude = 4 * self._chunks(numel)
        return PayloadPlan(payload=size, result=size, prelude=prelude, prelude_op=Op.SUM, dense=DType.FLOAT32)

    @override
    def prepare(self, x: Floats, draw: Draw, world: int) -> NDArray[Any]:
        squares = x.astype(np.float64) ** 2
        sums = [lane_sum(squares[begin : begin + self.chunk]) for begin in range(0, x.size, self.chunk)]
        norms: Floats = np.sqrt(np.array(sums)).astype(np.float32)
        return norms

    @override
    def encode(self, x: Floats, draw: Draw, agreed: NDArray[Any], world: int) -> bytes:
        padded = np.zeros(self._chunks(x.size) * min(self.chunk, x.size), np.float32)
        padded[: x.size] = x
        return padded.reshape(self._chunks(x.size), -1)[self._choose(agreed, x.size)].tobytes()

    @override
    def residual(self, x: Floats, draw: Draw, agreed: NDArray[Any], payload: bytes, world: int) -> Floats:
        left = x.copy()
        for chunk in self._choose(agreed, x.size):
            left[chunk * self.chunk : (chunk + 1) * self.chunk] = 0
        return left

    @override
    def decode(
        self, result: bytes, count: int, draw: Draw, agreed: NDArray[Any], numel: int, world: int, factor: float = 1.0
    ) -> Floats:
        check_length(self.name, result, self.plan(numel, world).payload)
        width = min(self.chunk, numel)
        out = np.zeros((self._chunks(numel), width), np.float32)
        values = np.frombuffer(result, np.float32).reshape(-1, width)
        out[self._choose(agreed, numel)] = np.float32(0) + np.float32(factor) * values
        return out.reshape(-1)[:numel]

    def _chunks(self, numel: int) -> int:
        return -(-numel // self.chunk)

    def _chosen(self, numel: int) -> int:
        return max(1, int(self.ratio * self._chunks(numel)))

    def _choose(self, agreed: NDArray[Any], numel: int) -> NDArray[np.int64]:
        return largest(magnitudes(agreed.view(np.float32)), self._chosen(numel))
