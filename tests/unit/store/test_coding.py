"""Gradient codes: any n - s ranks are enough, whichever they are."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from byteps_like.errors import InvalidArgumentError, StalledError
from byteps_like.store.coding import LARGEST, GradientCode

CODES = [(n, s) for n in range(1, 9) for s in range(n)]


@pytest.mark.parametrize(("n", "s"), CODES)
def test_the_sum_follows_from_what_any_n_minus_s_ranks_push(n: int, s: int) -> None:
    code = GradientCode(n, s)
    gradients = np.random.default_rng(n * 10 + s).standard_normal((n, 100))
    pushes = [
        sum(c * gradients[p] for c, p in zip(code.coefficients(r), code.portions(r), strict=True)) for r in range(n)
    ]
    for ranks in itertools.combinations(range(n), n - s):
        decoded = sum(a * pushes[rank] for a, rank in zip(code.decode(ranks), ranks, strict=True))
        assert abs(decoded - gradients.sum(axis=0)).max() < 1e-9


@pytest.mark.parametrize(("n", "s"), CODES)
def test_every_rank_computes_one_portion_more_than_may_be_missing(n: int, s: int) -> None:
    code = GradientCode(n, s)
    assert [len(code.portions(rank)) for rank in range(n)] == [s + 1] * n
    assert sorted(p for rank in range(n) for p in code.portions(rank)) == sorted(list(range(n)) * (s + 1))
    assert abs(code.matrix).max() <= LARGEST


def test_more_ranks_than_needed_are_all_used_or_left_out_at_will() -> None:
    code = GradientCode(5, 2)
    assert code.decode((0, 1, 2, 3, 4)) @ code.matrix == pytest.approx(np.ones(5))


def test_too_few_are_refused_with_those_that_are_here() -> None:
    with pytest.raises(StalledError, match=r"2 of 5 ranks are here, \[0, 3\]: 3 are needed"):
        GradientCode(5, 2).decode((0, 3))


@pytest.mark.parametrize(("n", "s"), [(3, 3), (3, -1), (0, 0)])
def test_codes_that_can_not_be_are_refused(n: int, s: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"s={s} ranks that may be missing: of n={n}"):
        GradientCode(n, s)


def test_a_code_that_would_multiply_rounding_errors_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"n=33 ranks of which s=15 .* coefficients up to"):
        GradientCode(33, 15)
