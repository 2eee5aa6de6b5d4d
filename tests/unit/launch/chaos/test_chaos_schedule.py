"""What happens in a job that is disturbed follows from the seed, and is as much as was asked for."""

from __future__ import annotations

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from byteps_like.launch.chaos.schedule import Disturbance, Violence


def some(count: int, **how: object) -> list[Disturbance]:
    return list(islice(Violence(**({"seed": 1} | how)).disturbances(), count))  # type: ignore[arg-type]


@given(st.integers(0, 2**32), st.floats(0.01, 10), st.floats(0, 10), st.floats(0, 1), st.floats(0, 1))
def test_a_seed_says_it_all(seed: int, low: float, more: float, spawn: float, pauses: float) -> None:
    how = {"seed": seed, "every": (low, low + more), "spawn": spawn, "pauses": pauses}
    first = some(30, **how)
    assert first == some(30, **how)
    for one in first:
        assert low <= one.after <= low + more
        assert sorted(one.kinds) == ["scheduler", "server", "worker"]
        assert 0 <= one.place < 1 and (one.pause == 0 or 0.2 <= one.pause <= 2)


def test_other_seeds_say_something_else() -> None:
    assert some(5) != some(5, seed=2)


def test_shares_are_kept() -> None:
    found = some(4000, spawn=0.6, pauses=0.25)
    assert abs(sum(one.spawn for one in found) / 4000 - 0.6) < 0.04
    assert abs(sum(one.pause > 0 for one in found) / 4000 - 0.25) < 0.04
    for kind in ("worker", "server", "scheduler"):
        assert abs(sum(one.kinds[0] == kind for one in found) / 4000 - 1 / 3) < 0.04


def test_the_rest_stays_as_it_is_when_one_thing_is_changed() -> None:
    plain, paused = some(20), some(20, pauses=1.0)
    assert [(one.after, one.kinds, one.place) for one in plain] == [(one.after, one.kinds, one.place) for one in paused]


def test_only_the_kinds_that_were_named_are_met() -> None:
    assert {one.kinds for one in some(20, kinds=("server",))} == {("server",)}


@given(st.floats(0, 1, exclude_max=True), st.integers(1, 20))
def test_a_victim_is_one_of_those_who_are_there(place: float, count: int) -> None:
    assert Disturbance(1.0, ("worker",), place, True, 0.0).victim(range(count)) in range(count)
