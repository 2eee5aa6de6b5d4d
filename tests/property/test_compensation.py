"""What surrounds codecs, native against NumPy: error feedback, momentum, PowerSGD's steps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps_like.compression.codec import Floats
from byteps_like.compression.feedback import Compensation
from byteps_like.compression.low_rank import (
    multiply_factors,
    multiply_factors_reference,
    orthonormalize,
    orthonormalize_reference,
)

NUMEL = 77


def numbers(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape or NUMEL, np.float32)


@given(
    seed=st.integers(0, 1 << 30), nesterov=st.booleans(), with_residual=st.booleans(), scale=st.sampled_from([1, 0.5])
)
def test_before_an_encoding(seed: int, nesterov: bool, with_residual: bool, scale: float) -> None:
    x, residual, momentum = (numbers(seed + part) for part in range(3))
    mu = np.float32(0.9)
    expected_momentum = mu * momentum + x
    expected = x + mu * expected_momentum if nesterov else expected_momentum
    if with_residual:
        expected = expected + np.float32(scale) * residual
    kept = Compensation(residual if with_residual else None, momentum, 0.9, nesterov, scale=scale)
    kept.before(x)
    np.testing.assert_array_equal(x, expected)
    np.testing.assert_array_equal(momentum, expected_momentum)
    assert kept.scale == (1.0 if with_residual else scale)


@pytest.mark.parametrize("masked", [False, True])
def test_after_an_encoding(masked: bool) -> None:
    """Momentum ends where the element was sent, and nothing that isn't finite stays."""
    x, momentum = numbers(1), numbers(2)
    sent = np.arange(NUMEL) % 3 == 0
    residual = np.where(sent, np.float32(0), x)
    residual[5], momentum[7] = np.inf, np.nan
    expected = np.where(sent | (np.arange(NUMEL) == 5), 0, momentum) if masked else momentum.copy()
    expected[7] = 0
    Compensation(residual, momentum, 0.9, masked=masked).after(x)
    np.testing.assert_array_equal(momentum, expected)
    assert residual[5] == 0
    np.testing.assert_array_equal(np.delete(residual, 5), np.delete(np.where(sent, 0, x), 5))


def test_arrays_of_other_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="as long as"):
        Compensation(numbers(1)[:5]).before(numbers(2))


@given(
    rows=st.integers(1, 100), rank=st.integers(1, 6), columns=st.integers(1, 40), seed=st.integers(0, 1 << 30),
    dtype=st.sampled_from([np.float32, np.float64]),
)  # fmt: skip
def test_low_rank_steps_are_the_same_bits(rows: int, rank: int, columns: int, seed: int, dtype: type) -> None:
    basis = numbers(seed, rows, rank).astype(dtype)
    factor = numbers(seed + 1, columns, rank).astype(dtype)
    twin, (out, expected) = basis.copy(), np.empty((2, rows, columns), dtype)
    orthonormalize(basis)
    orthonormalize_reference(twin)
    np.testing.assert_array_equal(basis, twin)
    multiply_factors(basis, factor, out)
    multiply_factors_reference(basis, factor, expected)
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_allclose(out, basis.astype(np.float64) @ factor.T, rtol=1e-4, atol=1e-5)


def test_a_basis_is_orthonormal_and_spans_the_same() -> None:
    matrix = numbers(3, 200, 4)
    matrix[:, 3] = matrix[:, 0] + matrix[:, 1] * np.float32(1e-3)
    basis = matrix.copy()
    orthonormalize(basis)
    gram = basis.T.astype(np.float64) @ basis
    np.testing.assert_allclose(gram, np.diag([1, 1, 1, gram[3, 3]]), atol=1e-6)
    np.testing.assert_allclose(basis @ (basis.T @ matrix), matrix, atol=1e-4)


def test_what_depends_on_others_becomes_zero() -> None:
    matrix = np.zeros((10, 3), np.float32)
    matrix[:, 0] = matrix[:, 1] = np.arange(10)
    orthonormalize(matrix)
    np.testing.assert_array_equal(matrix[:, 1:], 0)
    assert np.linalg.norm(matrix[:, 0]) == pytest.approx(1)
