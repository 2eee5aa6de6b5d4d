"""Blocks that aren't zero, and a bit for each block that says which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from byteps_like.compression.codec import Codec, Draw, Floats, PayloadPlan, Trait, check_length
from byteps_like.compression.sparse.sparse import WHOLE_PARTITION, UnionSum, magnitudes, to_flags, to_words, words_of
from byteps_like.errors import CorruptError

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class BlockSparse(Codec):
    """Blocks of `block` elements that are all zero aren't sent: lossless, 32 bits per element of the others.

    Payload: a 32-bit count of the blocks in it; a bit per block of the partition, in 32-bit words; these blocks one
    after another, the partition's last as short as it is. Where more than `dense` of the blocks aren't zero, and in a
    sum that has all blocks: 0xFFFFFFFF, and all elements. A server adds blocks to an fp32 partition and answers with
    the union, while they come. Fei et al., "Efficient Sparse Collective Communication ..." (OmniReduce, SIGCOMM 2021):
    their blocks, with the bits of all of them first.
    """

    name: ClassVar[str] = "blocksparse"
    id: ClassVar[int] = 19
    trait: ClassVar[Trait] = Trait.MERGE
    biased: ClassVar[bool] = False
    variable: ClassVar[bool] = True
    source: ClassVar[str] = "Fei et al. (OmniReduce), SIGCOMM 2021"

    block: int = 256
    dense: float = 0.8

    @property
    @override
    def whole(self) -> int:
        return self.block

    @override
    def plan(self, numel: int, world: int) -> PayloadPlan:
        words = words_of(self._blocks(numel))
        size = 4 + 4 * words + 4 * numel
        return PayloadPlan(payload=size, result=size, accumulator=4 * (numel + 2 * words))

    @override
    def encode(self, x: Floats, draw: Draw, agreed: NDArray[Any], world: int) -> bytes:
        starts = np.arange(0, x.size, self.block)
        blocks = np.add.reduceat((magnitudes(x) != 0).astype(np.int64), starts) > 0
        return self._store(x, blocks, whole=int(blocks.sum()) > self.dense * blocks.size)

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
        blocks = accumulator.came[:: self.block]
        return self._store(accumulator.sums, blocks, whole=bool(blocks.all()))

    def _blocks(self, numel: int) -> int:
        return -(-numel // self.block)

    def _store(self, x: Floats, blocks: Flags, whole: bool) -> bytes:
        if whole:
            return np.uint32(WHOLE_PARTITION).tobytes() + x.tobytes()
        head = np.uint32(blocks.sum()).tobytes() + to_words(blocks).tobytes()
        return head + x[self._elements(blocks, x.size)].tobytes()

    def _load(self, payload: bytes, numel: int) -> tuple[Flags, Floats]:
        head = np.frombuffer(payload[:4], np.uint32) if len(payload) >= 4 else (None,)
        if head[0] == WHOLE_PARTITION:
            check_length(self.name, payload, 4 + 4 * numel)
            return np.ones(numel, bool), np.frombuffer(payload, np.float32, offset=4)
        begin = 4 + 4 * words_of(self._blocks(numel))
        if len(payload) < begin:
            raise CorruptError(f"{self.name}: a payload shorter than its bitmap")
        words = np.frombuffer(payload[4:begin], np.uint32)
        blocks = to_flags(words, self._blocks(numel))
        if (to_words(blocks) != words).any() or blocks.sum() != head[0]:
            raise CorruptError(f"{self.name}: its count is not its bitmap's, or bits are set beyond the last block")
        elements = self._elements(blocks, numel)
        check_length(self.name, payload, begin + 4 * int(elements.sum()))
        return elements, np.frombuffer(payload, np.float32, offset=begin)

    def _elements(self, blocks: Flags, numel: int) -> Flags:
        return np.repeat(blocks, self.block)[:numel]
