"""Sums of floats in the order in which the native loops make them (compression/loops.h)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LANES = 16


def lane_sum(values: NDArray[np.float64]) -> float:
    """The sum in 16 lanes, by index, each in order; then of the lanes, in order."""
    padded = np.zeros(-(-values.size // LANES) * LANES)
    padded[: values.size] = values
    total = 0.0
    for lane in np.add.accumulate(padded.reshape(-1, LANES), axis=0)[-1] if values.size else ():
        total += float(lane)
    return total
