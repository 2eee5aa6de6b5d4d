"""PowerSGD's two steps that every rank makes for itself: the same bits on all, native or not, whatever their CPUs.

Vogels et al., "PowerSGD" (NeurIPS 2019). Sums are made in a fixed order and nothing is fused, which libraries for
linear algebra don't promise: ranks on unlike machines would drift apart.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from byteps_like.compression.lanes import lane_sum

try:
    import byteps_like._core as _core
except ImportError:  # portable workers reduce factors, too
    _core = None

Matrix = NDArray[Any]
"""Of fp32 or fp64, C-contiguous."""
DEPENDENT = 1e-6
"""What is left of a column, relative to what it was, below which it depends on those before it."""


def orthonormalize(basis: Matrix) -> None:
    """Makes the columns of `basis` (rows x rank) orthonormal, in place; dependent ones become zero."""
    if _core is None:
        orthonormalize_reference(basis)
    else:
        _core.orthonormalize(basis)


def multiply_factors(basis: Matrix, factor: Matrix, out: Matrix) -> None:
    """out (rows x columns) = basis (rows x rank) times the transpose of factor (columns x rank)."""
    if _core is None:
        multiply_factors_reference(basis, factor, out)
    else:
        _core.multiply_factors(basis, factor, out)


def orthonormalize_reference(basis: Matrix) -> None:
    """Gram-Schmidt, done twice, in fp64."""
    columns: list[NDArray[np.float64]] = []
    for raw in basis.T:
        column = raw.astype(np.float64)
        was = np.sqrt(lane_sum(column * column))
        for _ in range(2):
            for other in columns:
                column -= lane_sum(column * other) * other
        length = np.sqrt(lane_sum(column * column))
        column *= 1 / length if length > DEPENDENT * was else 0.0
        columns.append(column)
    basis[:] = np.stack(columns, axis=1)


def multiply_factors_reference(basis: Matrix, factor: Matrix, out: Matrix) -> None:
    """One outer product after the other."""
    out[:] = 0
    for weights, row in zip(basis.T, factor.T, strict=True):
        out += weights[:, None] * row
