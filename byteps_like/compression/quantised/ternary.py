"""TernGrad: -1, 0 or 1 times the greatest magnitude."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from byteps_like.compression.codec import Draw, Floats
from byteps_like.compression.quantised.quantised import Grid, Quantised, root_mean_square


@dataclass(frozen=True)
class Ternary(Quantised):
    """2 bits per element. Unbiased for what isn't clipped; its error is large where there are outliers.

    `clip` holds elements within so many times the root of the block's mean square (the paper: 2.5 standard deviations;
    taken about zero here, so that a constant isn't clipped away); 0: not at all. With `scale` "shared" the numbers are
    summed as they are. Layout: quantised.py. Wen et al., "TernGrad: Ternary Gradients to Reduce Communication in
    Distributed Deep Learning" (NeurIPS 2017).
    """

    name: ClassVar[str] = "ternary"
    id: ClassVar[int] = 10
    source: ClassVar[str] = "Wen et al. (TernGrad), NeurIPS 2017"

    block: int = 0
    clip: float = 2.5
    scale: str = "own"

    @property
    @override
    def grid(self) -> Grid:
        return Grid(1, "stochastic")

    @property
    @override
    def shared(self) -> bool:
        return self.scale == "shared"

    @property
    @override
    def biased(self) -> bool:  # type: ignore[override]
        return self.clip > 0

    @override
    def range_of(self, x: Floats) -> np.float32:
        most = super().range_of(x)
        return np.minimum(most, np.float32(self.clip) * root_mean_square(x)) if self.clip > 0 else most

    def clamped(self, x: Floats, draw: Draw, agreed: NDArray[Any]) -> int:
        """How many elements are cut off."""
        ranges = agreed if self.shared else self._ranges(x)
        return int(np.sum(np.abs(x) > self._each(ranges, x.size))) if self.clip > 0 else 0
