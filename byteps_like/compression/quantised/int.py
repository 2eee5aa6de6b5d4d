"""Whole numbers of 8, 4 or 2 bits with a scale per block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from byteps_like.compression.quantised.quantised import Grid, Quantised


@dataclass(frozen=True)
class Int(Quantised):
    """Block-wise int8 and int4: bits + 32/block bits per element; with a shared scale, bits up and 8 or 16 down.

    `rounding`: "nearest" (biased a little) or "stochastic" (unbiased, twice the error of one). `scale`: "own" sums by
    decoding and encoding again, "shared" sums the numbers as they are, after a round that agrees on the scales. Layout:
    quantised.py. Wang et al., "ZeRO++: Extremely Efficient Collective Communication for Large Model Training" (ICLR
    2024).
    """

    name: ClassVar[str] = "int"
    id: ClassVar[int] = 5
    source: ClassVar[str] = "Wang et al. (ZeRO++), ICLR 2024"

    bits: int = 8
    rounding: str = "nearest"
    scale: str = "own"

    @property
    @override
    def grid(self) -> Grid:
        return Grid((1 << (self.bits - 1)) - 1, "nearest" if self.rounding == "nearest" else "stochastic")

    @property
    @override
    def shared(self) -> bool:
        return self.scale == "shared"
