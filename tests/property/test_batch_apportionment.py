"""Batches by speed: shares are whole, add up to the batch, keep the minimum and follow the speeds."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps_like.torch.batches.apportion import apportion, better, seconds

SPEEDS = st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=40)


@st.composite
def dealt(draw: st.DrawFn) -> tuple[int, list[float], int]:
    """Units, speeds, and the least number for each."""
    speeds = draw(SPEEDS)
    least = draw(st.integers(1, 5))
    return least * len(speeds) + draw(st.integers(0, 5000)), speeds, least


@given(dealt())
def test_shares_add_up_and_nobody_gets_less_than_the_minimum(case: tuple[int, list[float], int]) -> None:
    units, speeds, least = case
    shares = apportion(units, speeds, least)
    assert sum(shares) == units and len(shares) == len(speeds)
    assert min(shares) >= least and all(isinstance(share, int) for share in shares)


@given(dealt())
def test_who_is_faster_does_not_get_less(case: tuple[int, list[float], int]) -> None:
    units, speeds, least = case
    by_speed = sorted(zip(speeds, apportion(units, speeds, least), strict=True))
    for (slow, fewer), (fast, more) in itertools.pairwise(by_speed):
        assert fewer <= more or slow == fast


@given(dealt(), st.data())
def test_who_becomes_faster_does_not_get_less_than_before(
    case: tuple[int, list[float], int], data: st.DataObject
) -> None:
    units, speeds, least = case
    rank = data.draw(st.integers(0, len(speeds) - 1))
    faster = [*speeds]
    faster[rank] *= data.draw(st.floats(1.01, 100))
    assert apportion(units, faster, least)[rank] >= apportion(units, speeds, least)[rank]


@given(st.integers(1, 40), st.integers(0, 5000), st.floats(1e-6, 1e9))
def test_equal_speeds_give_almost_equal_shares(ranks: int, more: int, speed: float) -> None:
    shares = apportion(ranks + more, [speed] * ranks)
    assert max(shares) - min(shares) <= 1
    assert list(shares) == sorted(shares, reverse=True)  # of equal ranks the lower come first


@given(dealt())
def test_shares_are_exact_quotas_rounded_where_all_have_enough(case: tuple[int, list[float], int]) -> None:
    units, speeds, least = case
    quotas = [units * Fraction(speed) / sum(map(Fraction, speeds)) for speed in speeds]
    if min(quotas) > least + Fraction(1, 1000):
        for share, quota in zip(apportion(units, speeds, least), quotas, strict=True):
            assert abs(share - quota) < 1 + Fraction(1, 10**6)


@given(dealt())
def test_the_scale_of_speeds_does_not_matter(case: tuple[int, list[float], int]) -> None:
    units, speeds, least = case
    assert apportion(units, [speed * 1024 for speed in speeds], least) == apportion(units, speeds, least)


@pytest.mark.parametrize(
    ("units", "speeds", "least", "shares"),
    [
        (7, [2.0, 2.0, 2.0, 1.0], 1, (2, 2, 2, 1)),
        (10, [1.0, 1.0, 1.0], 1, (4, 3, 3)),
        (10, [100.0, 1.0, 1.0], 2, (6, 2, 2)),
        (12, [100.0, 4.0, 1.0, 0.0], 1, (9, 1, 1, 1)),
        (6, [0.0, 0.0, 0.0], 1, (2, 2, 2)),
        (3, [9.0, 0.1, 0.1], 1, (1, 1, 1)),
    ],
)
def test_examples(units: int, speeds: list[float], least: int, shares: tuple[int, ...]) -> None:
    assert apportion(units, speeds, least) == shares


def test_shares_change_only_for_a_gain() -> None:
    speeds = [1.0, 1.0, 1.0, 1.04]
    wanted = apportion(100, speeds)
    assert wanted == (25, 25, 25, 25) and seconds(wanted, speeds) == 25
    assert better((24, 25, 25, 26), wanted, speeds, 0.05) == (24, 25, 25, 26)
    assert better((24, 25, 21, 30), wanted, speeds, 0.05) == wanted
    assert better((24, 25, 25, 26), (24, 25, 25, 26), speeds, 0.0) == (24, 25, 25, 26)


@given(SPEEDS, st.floats(0.0, 0.5))
def test_no_choice_is_made_twice(speeds: list[float], least_gain: float) -> None:
    """At the same speeds, what was chosen stays."""
    units = 10 * len(speeds)
    wanted = apportion(units, speeds)
    chosen = better(apportion(units, [1.0] * len(speeds)), wanted, speeds, least_gain)
    assert better(chosen, wanted, speeds, least_gain) == chosen
