"""EDEN and DRIVE: their published errors, and that they are unbiased."""

from __future__ import annotations

import numpy as np
import pytest

from byteps_like.compression.codec import Draw
from byteps_like.compression.quantised.eden import LIMITS, MAGNITUDES, Eden
from tests.fakes.codec_rounds import Native

NOTHING = np.zeros(0, np.float32)


def once(codec: Eden, x: np.ndarray, number: int, rank: int = 0) -> np.ndarray:
    native, draw = Native(codec, 1), Draw(5, number, rank)
    payload, _ = native.encode(x, draw, NOTHING)
    return native.decode(payload, draw, NOTHING, x.size)


@pytest.mark.parametrize("kind", ["gauss", "lognormal"])
@pytest.mark.parametrize(("bits", "expected"), [(1, 0.571), (2, 0.133), (3, 0.0358), (4, 0.0096)])
def test_errors_are_as_published(bits: int, expected: float, kind: str) -> None:
    x = np.random.default_rng(0).standard_normal(1 << 17, dtype=np.float32)
    if kind == "lognormal":
        x = np.copysign(np.exp(x), x)
    found = np.sum((once(Eden(bits), x, 1).astype(np.float64) - x) ** 2) / np.sum(x.astype(np.float64) ** 2)
    assert found == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("bits", [1, 4])
def test_the_expectation_is_exact(bits: int) -> None:
    x = np.random.default_rng(1).standard_normal(1024).astype(np.float32)
    found = np.stack([once(Eden(bits), x, i) for i in range(1000)]).astype(np.float64)
    scores = (found.mean(axis=0) - x) / (found.std(axis=0) / np.sqrt(len(found)))
    assert np.abs(scores).max() < 4
    assert 0.9 < np.sqrt(np.mean(scores**2)) < 1.1


def test_errors_of_ranks_average_out() -> None:
    x = np.random.default_rng(2).standard_normal(1 << 14).astype(np.float32)
    mean = np.mean([once(Eden(1), x, 1, rank) for rank in range(10)], axis=0)
    assert np.sum((mean - x) ** 2) / np.sum(x**2) == pytest.approx(0.0571, rel=0.06)


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_points_are_centroids_of_their_cells(bits: int) -> None:
    z = np.abs(np.random.default_rng(3).standard_normal(400_000))
    cells = np.searchsorted(LIMITS[bits], z)
    means = [z[cells == cell].mean() for cell in range(1 << (bits - 1))]
    np.testing.assert_allclose(means, MAGNITUDES[bits], atol=0.01)
    np.testing.assert_allclose(LIMITS[bits], (np.array(MAGNITUDES[bits])[1:] + MAGNITUDES[bits][:-1]) / 2)
