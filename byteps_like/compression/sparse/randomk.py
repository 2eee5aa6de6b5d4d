"""Elements that all ranks draw alike: their values alone are sent, and any reduction sums them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from byteps_like.compression.codec import Codec, Draw, Floats, PayloadPlan, Trait, check_length
from byteps_like.compression.random import random_words, stream_of
from byteps_like.dtypes import DType

_ELEMENTS = 1


@dataclass(frozen=True)
class RandomK(Codec):
    """`ratio` of the elements, at least one, drawn anew each round: 32 bits for each.

    The partition is cut into k = floor(ratio * numel) stretches as equal as can be (stretch i begins at floor(i *
    numel / k)), and of each one element is drawn: none twice, in order, the same on all ranks. With `scale` what is
    decoded is multiplied by the length of its stretch, numel / k: unbiased. Without, it wants error feedback.
    Payload: values. What isn't finite anywhere in a partition makes the first of them NaN. Stich et al., "Sparsified
    SGD with Memory" (NeurIPS 2018).
    """

    name: ClassVar[str] = "randomk"
    id: ClassVar[int] = 13
    trait: ClassVar[Trait] = Trait.DENSE
    source: ClassVar[str] = "Stich et al., NeurIPS 2018"

    ratio: float = 0.01
    scale: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.ratio <= 1:
            raise ValueError("ratio must be from 0 to 1")

    @property
    @override
    def biased(self) -> bool:  # type: ignore[override]
        return not self.scale

    @override
    def plan(self, numel: int, world: int) -> PayloadPlan:
        size = 4 * self._drawn(numel)
        return PayloadPlan(payload=size, result=size, dense=DType.FLOAT32)

    @override
    def encode(self, x: Floats, draw: Draw, agreed: NDArray[Any], world: int) -> bytes:
        values = x[self.elements(x.size, draw)[0]]
        if not np.isfinite(x).all():
            values[0] = np.nan
        return values.tobytes()

    @override
    def residual(self, x: Floats, draw: Draw, agreed: NDArray[Any], payload: bytes, world: int) -> Floats:
        elements, factors = self.elements(x.size, draw)
        left = x.copy()
        left[elements] -= factors * np.frombuffer(payload, np.float32)
        return left

    @override
    def decode(
        self, result: bytes, count: int, draw: Draw, agreed: NDArray[Any], numel: int, world: int, factor: float = 1.0
    ) -> Floats:
        check_length(self.name, result, self.plan(numel, world).payload)
        elements, factors = self.elements(numel, draw)
        out = np.zeros(numel, np.float32)
        out[elements] = np.float32(0) + np.float32(factor) * factors * np.frombuffer(result, np.float32)
        return out

    def elements(self, numel: int, draw: Draw) -> tuple[NDArray[np.int64], Floats]:
        """Those drawn, ascending, and what each is multiplied by."""
        drawn = self._drawn(numel)
        begins = np.arange(drawn + 1, dtype=np.uint64) * np.uint64(numel) // np.uint64(drawn)
        lengths = np.diff(begins)
        words = random_words(stream_of(self.seed, draw, _ELEMENTS, shared=True), drawn).astype(np.uint64)
        factors = lengths.astype(np.float32) if self.scale else np.ones(drawn, np.float32)
        return (begins[:-1] + (words * lengths >> np.uint64(32))).astype(np.int64), factors

    def _drawn(self, numel: int) -> int:
        return max(1, int(self.ratio * numel))
