"""What the soak finds wrong in sums, and what it takes for right."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps_like.launch.chaos.soak import MOST_WORKERS, WrongSumError, contributors, weights

RANKS = st.sets(st.integers(0, MOST_WORKERS - 1))


def summed(ranks: list[int], size: int, step: int) -> np.ndarray:
    total = np.zeros(size, np.float32)
    for rank in ranks:
        total += weights(size, step) * np.float32(4**rank)
    return total


@given(RANKS, st.integers(0, 10**6), st.integers(1, 40))
def test_a_sum_says_who_is_in_it(ranks: set[int], step: int, size: int) -> None:
    mask = contributors(summed(sorted(ranks), size, step), step)
    assert (mask == sum(1 << 2 * rank for rank in ranks)).all()


@given(RANKS, st.integers(0, MOST_WORKERS - 1), st.integers(0, 100))
def test_who_counts_twice_is_found(ranks: set[int], twice: int, step: int) -> None:
    with pytest.raises(WrongSumError, match=f"step {step}: element 0 of 8 is"):
        contributors(summed([*sorted(ranks | {twice}), twice], 8, step), step)


@given(RANKS.filter(bool), st.integers(0, 7), st.integers(0, 31))
def test_a_bit_that_tips_is_found_or_names_another_rank(ranks: set[int], place: int, bit: int) -> None:
    good = summed(sorted(ranks), 8, 3)
    bad = good.copy()
    bad.view(np.uint32)[place] ^= np.uint32(1 << bit)
    try:
        found = contributors(bad, 3)
    except WrongSumError:
        return
    assert found[place] != contributors(good, 3)[place] or bad[place] == good[place]


def test_the_sums_of_another_step_are_wrong() -> None:
    with pytest.raises(WrongSumError, match="so are"):
        contributors(summed([0, 1], 50, 4), 5)
