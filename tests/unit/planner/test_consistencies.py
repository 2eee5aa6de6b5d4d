"""Which of several consistencies stays, and what is saved of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps_like.errors import ConfigError
from byteps_like.tuner.consistencies import Rate, choice_of, load_choice, save_choice, table

TEXTS = ("bsp", "ssp:s=3", "asp")


@pytest.mark.parametrize(
    ("steps", "chosen"),
    [((10, 20, 30), 2), ((29, 20, 30), 0), ((28, 29, 30), 1), ((30, 20, 10), 0), ((0, 0, 0), 0), ((5,), 0)],
)
def test_the_first_of_those_about_as_fast_as_the_fastest(steps, chosen):
    assert choice_of([Rate(text, rate) for text, rate in zip(TEXTS, steps, strict=False)]) == chosen


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=6))
def test_whoever_stays_is_fast_and_none_before_it_is(steps):
    chosen = choice_of([Rate(str(number), rate) for number, rate in enumerate(steps)])
    assert steps[chosen] >= 0.95 * max(steps)
    assert all(before < 0.95 * max(steps) for before in steps[:chosen])


def test_the_table_marks_it():
    lines = table([Rate("bsp", 1.5), Rate("ssp:s=3", 20.25)], 1).splitlines()
    assert [line.split() for line in lines] == [["bsp", "1.50", "steps/s"], ["*", "ssp:s=3", "20.25", "steps/s"]]


def test_what_was_saved_is_found(tmp_path):
    path = tmp_path / "below" / "choice.json"
    save_choice(path, "asp", [Rate("bsp", 1.0), Rate("asp", 2.0)])
    assert load_choice(path, TEXTS) == TEXTS.index("asp")
    with pytest.raises(ConfigError, match=r"choice.json: consistency 'asp' is none of 'bsp'"):
        load_choice(path, ("bsp",))


@pytest.mark.parametrize("text", ["", "[1]", "{}", '"asp"'])
def test_other_files_are_refused(tmp_path, text):
    path = tmp_path / "choice.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"choice.json is not a consistency saved by a tuner"):
        load_choice(path, TEXTS)
