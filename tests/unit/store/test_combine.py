"""By what contributions of different weights and ages count."""

from __future__ import annotations

import math
from typing import Any

import pytest

from byteps_like.errors import InvalidArgumentError
from byteps_like.store.combining.registry import combining_of
from byteps_like.store.combining.weighed import Weighed
from byteps_like.store.ledger import Version
from byteps_like.store.policies.policy import Contribution


def factors(version: Version, *how: Any, **more: Any) -> list[float]:
    return Weighed(*how, **more).factors(version)


def version(*pushes: tuple[int, float]) -> Version:
    """The sixth, of contributions of these ages and weights."""
    return Version(6, tuple(Contribution(rank, 0, 5 - age, weight) for rank, (age, weight) in enumerate(pushes)))


def test_a_mean_is_by_weights_and_a_sum_is_weighted() -> None:
    assert factors(version((0, 1.0), (0, 3.0))) == [0.25, 0.75]
    assert factors(version((0, 1.0), (0, 3.0)), "sum") == [1.0, 3.0]


def test_age_in_a_mean_shifts_weight_and_damping_takes_it_away() -> None:
    three = version((0, 1.0), (1, 1.0), (4, 1.0))
    assert factors(three, age="inverse") == pytest.approx([1 / 2.25, 1 / 2.25, 0.25 / 2.25])
    assert factors(three, damp="inverse") == pytest.approx([1 / 3, 1 / 3, 1 / 12])
    assert factors(version((3, 7.0)), age="exp") == [1.0], "one contribution's own mean"
    assert factors(version((3, 7.0)), damp="exp") == pytest.approx([(math.e / 2) ** -3])


def test_both_and_one_of_a_user_s_own() -> None:
    two = version((0, 2.0), (2, 1.0))
    assert factors(two, "sum", age=lambda age: 1 / (1 + age), damp="inverse") == pytest.approx([2.0, 1 / 3 / 2])


@pytest.mark.parametrize(
    ("weight", "how", "words"),
    [
        (0.0, {}, "weight 0.0: it must be a number above 0"),
        (math.nan, {}, "weight nan"),
        (1.0, {"combine": "median"}, "combine='median': contributions can be combined by sum or mean"),
        (1.0, {"age": "old"}, "no age factor 'old'; these are known: exp, inverse"),
        (1.0, {"damp": lambda age: -1.0}, "age factor -1.0: it must be"),
    ],
)
def test_what_makes_no_sense_is_refused(weight: float, how: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        factors(version((0, weight)), **how)


def test_a_text_says_a_way_of_combining_in_full_and_is_read_in_part() -> None:
    assert Weighed().text() == "mean:age=none,damp=none"
    assert Weighed("sum", damp="exp").text() == "sum:age=none,damp=exp"
    assert combining_of("sum") == Weighed("sum")
    assert combining_of("mean:damp=inverse") == Weighed("mean", damp="inverse")


def test_servers_know_no_function_of_a_user() -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"age=<.*> is a function, which servers don't know; they know exp, inv"
    ):
        Weighed(age=lambda age: 1.0).text()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("median", "combine='median': contributions can be combined by sum or mean"),
        ("mean:age=old", "no age factor 'old'"),
        ("mean:k=1", "there is no k; there are age and damp"),
        ("mean:age", "'age' in 'mean:age' is not key=value"),
    ],
)
def test_texts_that_mean_nothing_are_refused(text: str, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        combining_of(text)


def test_however_old_all_are_their_mean_is_one() -> None:
    assert factors(version((5000, 1.0)), age="exp") == [1.0]
    assert factors(version((5000, 1.0), (7000, 3.0)), age="exp") == [0.25, 0.75]
