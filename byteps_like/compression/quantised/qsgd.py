"""QSGD: levels between 0 and a block's norm, rounded stochastically."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from byteps_like.compression.codec import Floats
from byteps_like.compression.quantised.quantised import Grid, Quantised, euclidean


@dataclass(frozen=True)
class Qsgd(Quantised):
    """`levels` from 0 to the norm: 1 takes 2 bits, up to 7 take 4, up to 127 take 8, and 32/block for the norm.

    Unbiased. `norm` "l2" is the paper's; "max" has a far smaller error. With `scale` "shared" the numbers are summed as
    they are. Layout: quantised.py; no Elias codes. Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient
    Quantization and Encoding" (NeurIPS 2017).
    """

    name: ClassVar[str] = "qsgd"
    id: ClassVar[int] = 8
    source: ClassVar[str] = "Alistarh et al., NeurIPS 2017"

    block: int = 512
    levels: int = 7
    norm: str = "max"
    scale: str = "own"

    @property
    @override
    def grid(self) -> Grid:
        return Grid(self.levels, "stochastic")

    @property
    @override
    def shared(self) -> bool:
        return self.scale == "shared"

    @override
    def range_of(self, x: Floats) -> np.float32:
        return euclidean(x) if self.norm == "l2" else super().range_of(x)
