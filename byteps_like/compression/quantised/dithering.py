"""BytePS's dithering: the partition divided by its norm, rounded stochastically to one of some levels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from byteps_like.compression.codec import Floats
from byteps_like.compression.quantised.quantised import Grid, Quantised, euclidean


@dataclass(frozen=True)
class Dithering(Quantised):
    """`levels` up to the norm, in equal steps (`partition` "linear") or 1, 1/2, 1/4, ... of it ("natural").

    1 level takes 2 bits per element, up to 7 take 4, up to 127 take 8. Unbiased. Layout: quantised.py; no Elias codes.
    BytePS's compressor of that name; natural: Horvath et al., "Natural Compression for Distributed Deep Learning" (MSML
    2022).
    """

    name: ClassVar[str] = "dithering"
    id: ClassVar[int] = 11
    source: ClassVar[str] = "BytePS; Horvath et al., MSML 2022"

    block: int = 0
    levels: int = 7
    norm: str = "max"
    partition: str = "linear"

    @property
    @override
    def grid(self) -> Grid:
        return Grid(self.levels, "natural" if self.partition == "natural" else "stochastic")

    @override
    def range_of(self, x: Floats) -> np.float32:
        return euclidean(x) if self.norm == "l2" else super().range_of(x)
