"""What the contributions of a version tell of the gradient that all of them stand for: its size, beside noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LANES = 8
"""Partial sums over the elements, as the native twin has them (server/store/gradient_estimate.h): the same bits."""


@dataclass(frozen=True)
class GradientEstimate:
    """Unbiased estimates, if contributions are drawn independently around one gradient, with one spread."""

    square: float
    """Of the squared norm of that gradient. Below 0 where noise hides it."""
    noise: float
    """Of the expected squared distance of a contribution from it."""


def estimate_gradient(contributions: Sequence[NDArray[Any]]) -> GradientEstimate:
    """Of at least two contributions of one shape, finite. With the mean g of m: noise = Σ|gᵢ - g|² / (m - 1); and as
    |g|² is too large by noise / m on average, square = |g|² - noise / m."""
    count = len(contributions)
    every = np.array([one.ravel() for one in contributions], np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = _sum(every) / count
        noise = _total(_sum((every - mean) ** 2)) / (count - 1)
        return GradientEstimate(_total(mean * mean) - noise / count, noise)


def _sum(rows: np.ndarray) -> np.ndarray:
    """From the first row to the last, whatever NumPy thinks of it."""
    found: np.ndarray = np.add.accumulate(rows, axis=0)[-1]
    return found


def _total(values: np.ndarray) -> float:
    padded = np.zeros((-(-len(values) // _LANES) or 1, _LANES))
    padded.ravel()[: len(values)] = values
    return float(np.add.accumulate(_sum(padded))[-1])
