"""What rows of a table are before anybody has written them."""

from __future__ import annotations

import numpy as np
import pytest

from byteps_like.errors import InvalidArgumentError
from byteps_like.store.tables.first_values import FirstValues, Normal, Uniform, Zeros, first_values_of

ROWS = 20_000


@pytest.mark.parametrize("text", ["zeros", "uniform:bound=0.25,seed=7", "normal:seed=7,std=3.0"])
def test_a_text_means_what_it_is_made_of(text: str) -> None:
    assert first_values_of(text, np.float32).text() == text


def test_short_texts_and_objects() -> None:
    assert first_values_of("uniform", np.float32) == Uniform()
    assert first_values_of("normal:std=2", np.float64) == Normal(2.0)
    assert first_values_of(Zeros(), np.int64) == Zeros()


@pytest.mark.parametrize(
    ("wanted", "dtype", "why"),
    [
        ("ones", "float32", "rows begin as zeros, uniform, normal"),
        ("uniform:std=1", "float32", "'std' in 'uniform:std=1' is not a parameter"),
        ("uniform:bound=x", "float32", "bound"),
        ("uniform:bound", "float32", "init='uniform:bound'"),
        ("uniform:bound=-1", "float32", "bound=-1.0"),
        ("normal:std=inf", "float32", "std=inf"),
        ("normal:seed=-1", "float32", "seed=-1"),
        ("uniform", "int64", "rows of int64 begin as zeros"),
        (3, "float32", "neither first values nor their text"),
    ],
)
def test_what_rows_can_not_begin_as(wanted: FirstValues | str, dtype: str, why: str) -> None:
    with pytest.raises(InvalidArgumentError, match=why.replace("(", r"\(")):
        first_values_of(wanted, dtype)


@pytest.mark.parametrize(("first", "deviation"), [(Uniform(3.0), 3.0 / 3**0.5), (Normal(2.0), 2.0)])
def test_mean_and_deviation(first: FirstValues, deviation: float) -> None:
    """Over many rows, and over the elements of one; within five standard errors."""
    few = np.concatenate([first.make(row, 2, np.float64) for row in range(ROWS)])
    for values in (few[:, 0], few[:, 1], first.make(1 << 63, 50_000, np.float64)[0]):
        assert abs(values.mean()) < 5 * deviation / len(values) ** 0.5
        assert values.std() == pytest.approx(deviation, rel=5 / len(values) ** 0.5)
    assert abs(np.corrcoef(few.T)[0, 1]) < 5 / ROWS**0.5


def test_bounds() -> None:
    values = Uniform(0.5).make(5, 100_000, np.float32)
    assert values.dtype == np.float32 and values.min() >= -0.5 and values.max() < 0.5
    assert np.abs(Normal(1.0).make(5, 100_000, np.float32)).max() < 6


def test_a_row_depends_on_its_id_and_the_seed_only() -> None:
    first = Uniform(1.0, seed=3)
    assert np.array_equal(first.make(9, 8, np.float32), first.make(9, 8, np.float32))
    assert np.array_equal(first.make(9, 8, np.float32)[:, :3], first.make(9, 3, np.float32))
    for other in (first.make(10, 8, np.float32), Uniform(1.0, seed=4).make(9, 8, np.float32)):
        assert not np.isin(first.make(9, 8, np.float32), other).any()
