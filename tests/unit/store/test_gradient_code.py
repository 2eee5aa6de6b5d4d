"""Any n - s ranks decode the whole batch's gradient; what codes can't do is refused."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from byteps_like.errors import InvalidArgumentError
from byteps_like.store.combining.decoded import Decoded
from byteps_like.store.combining.gradient_code import GradientCode, solved
from byteps_like.store.gradient_coding import LARGEST, GradientCoding
from byteps_like.store.ledger import Version
from byteps_like.store.policies.policy import Contribution
from byteps_like.store.policies.registry import policy_of

CODES = [(n, s) for n in range(1, 9) for s in range(n)]


def matrix(code: GradientCode) -> np.ndarray:
    """B: rank, part -> factor."""
    found = np.zeros((code.n, code.n))
    for rank in range(code.n):
        found[rank, code.parts(rank)] = code.row(rank)
    return found


@pytest.mark.parametrize(("n", "s"), CODES)
def test_every_set_of_ranks_that_is_large_enough_decodes_the_whole(n: int, s: int) -> None:
    code = GradientCoding(n, s).code
    rows, gradients = matrix(code), np.random.default_rng(0).standard_normal((n, 5))
    coded = rows @ gradients
    for size in range(n - s, n + 1):
        for present in itertools.combinations(range(n), size):
            factors = code.decoded(present)
            assert max(map(abs, factors)) < LARGEST
            np.testing.assert_allclose(np.array(factors) @ coded[list(present)], gradients.sum(0), rtol=0, atol=1e-9)


@pytest.mark.parametrize(("n", "s"), CODES)
def test_every_part_is_computed_by_one_rank_more_than_may_be_missing(n: int, s: int) -> None:
    parts = [part for rank in range(n) for part in GradientCode(n, s).parts(rank)]
    assert sorted(parts) == sorted(list(range(n)) * (s + 1))


@pytest.mark.parametrize(("n", "s"), [(5, 2), (6, 2), (8, 0)])
def test_a_set_that_is_too_small_decodes_nothing(n: int, s: int) -> None:
    code = GradientCode(n, s)
    assert code.decoded(range(n - s - 1)) == []


def test_each_rank_computes_one_part_more_than_ranks_may_be_missing() -> None:
    assert [GradientCode(6, 2).parts(rank) for rank in (0, 2, 5)] == [[0, 1, 2], [0, 1, 2], [3, 4, 5]]
    assert [GradientCode(5, 2).parts(rank) for rank in (0, 4)] == [[0, 1, 2], [4, 0, 1]]


def test_equations_are_solved_as_by_numpy() -> None:
    draw = np.random.default_rng(1)
    square, tall = draw.standard_normal((6, 6)), draw.standard_normal((9, 4))
    right, wanted = draw.standard_normal(6), draw.standard_normal(4)
    np.testing.assert_allclose(solved(square.tolist(), right.tolist()), np.linalg.solve(square, right), rtol=1e-10)
    np.testing.assert_allclose(solved(tall.tolist(), (tall @ wanted).tolist()), wanted, rtol=1e-10)
    assert np.isnan(solved([[0.0]], [1.0])).all()


def version(*ranks: int) -> Version:
    return Version(1, tuple(Contribution(rank, 0, 0) for rank in ranks))


def test_the_factors_of_a_version_are_those_of_its_ranks_in_their_order() -> None:
    way = Decoded(GradientCode(4, 1))
    assert way.factors(version(3, 0, 2)) == [0.0, 0.25, 0.25]
    assert Decoded(GradientCode(4, 1), "sum").factors(version(1, 0, 3, 2)) == [0.0, 1.0, 0.0, 1.0]
    assert way.factors(version(0, 1)) == way.factors(version(0, 7)) == way.factors(version()) == []


def test_what_a_rank_sends_is_said_by_part() -> None:
    coding = GradientCoding(5, 1)
    assert list(coding.factors(4)) == [4, 0]
    assert coding.options == {"consistency": "k_of_n:k=4", "combine": Decoded(coding.code).text()}


@pytest.mark.parametrize(("n", "s"), [(0, 0), (4, 4), (4, -1), (65, 1)])
def test_codes_that_there_are_not(n: int, s: int) -> None:
    with pytest.raises(InvalidArgumentError, match="a gradient code of"):
        GradientCoding(n, s)


def test_a_code_whose_factors_would_be_too_great_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="factors above 100"):
        GradientCoding(31, 14)


@pytest.mark.parametrize(
    ("policy", "ranks", "words"),
    [
        ("asp", 4, "makes versions of any: use k_of_n:k=3"),
        ("k_of_n:k=3,late=next", 4, "makes versions of any"),
        ("backup:b=2", 4, "makes versions of 2"),
        ("backup:b=1", 5, "code of n=4 ranks can't be used by 5"),
    ],
)
def test_policies_that_can_not_be_decoded(policy: str, ranks: int, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        Decoded(GradientCode(4, 1)).check(policy_of(policy, ranks), ranks)
    Decoded(GradientCode(4, 1)).check(policy_of("k_of_n:k=3,grace=auto", 4), 4)
    with pytest.raises(InvalidArgumentError, match="its weight is 1"):
        Decoded(GradientCode(4, 1)).check_weight(2.0)
