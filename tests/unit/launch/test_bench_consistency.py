"""The benchmark of consistencies: its simulation, its figures, and that its rows compare ways that there are."""

from __future__ import annotations

import pytest

from bench.consistency import turns
from bench.consistency.rows import ROWS, around
from bench.consistency.scenarios import S1, S2, SLOW, Scenario
from bench.consistency.simulated import Case, simulated
from bench.consistency.turns import RankTurn
from bench.consistency.ways import JOBS, Plan

STEPS = 40


def by_policy(policy: str, *, versions: int | None = None, scenario: Scenario = S1) -> list[RankTurn]:
    """Of steps of a second, without a network."""
    steps = (STEPS,) * 4
    return simulated(Case(policy, steps, lambda rank, step: scenario.factor(0, rank, step), versions=versions))


def test_all_go_at_the_pace_of_the_slow_rank() -> None:
    for policy in ("bsp", "ssp:s=1", "ssp:s=3", "dssp:lo=1,hi=8"):
        found = by_policy(policy)
        assert turns.steady_fast_rate(found) == pytest.approx(1 / SLOW)
        assert turns.wait(found) == pytest.approx((SLOW - 1) * 3 / 4)


def test_nobody_waits_under_asp() -> None:
    found = by_policy("asp")
    assert [rank.landed[-1] for rank in found] == [STEPS, STEPS, STEPS, SLOW * STEPS]
    assert all(waited == 0 for rank in found for waited in rank.blocked)


def test_a_partial_round_needs_only_the_fast_ranks() -> None:
    assert turns.version_rate(by_policy("backup:b=1", versions=STEPS)) == pytest.approx(1.0)


def test_ages_are_those_of_the_theory() -> None:
    found = by_policy("asp", versions=4 * 400, scenario=S2)
    assert turns.mean_age(found) == pytest.approx(3.0, rel=0.02)


def test_links_are_shared() -> None:
    case = Case("bsp", (1,) * 4, lambda rank, step: 1.0, own=0.1, shared=0.05)
    assert [rank.landed[-1] for rank in simulated(case)] == pytest.approx([1.3, 1.3, 1.35, 1.4])


def test_a_burst_is_the_most_of_neighbouring_steps() -> None:
    ranks = [RankTurn(sent=[0, 4, 1, 0, 0]), RankTurn(sent=[2, 0, 0, 2, 2])]
    assert turns.burst(ranks, steps=2) == 5


def test_rows_compare_ways_of_their_jobs() -> None:
    for row in ROWS:
        assert set(row.ways) <= JOBS[row.job].ways.keys(), row.what
        if row.simulated:
            assert all(JOBS[row.job].ways[way].policy for way in row.ways), row.what


def test_a_target_has_two_sides() -> None:
    target = around(3.0, 0.02)
    assert target.met(2.95) and target.met(3.05) and not target.met(3.1) and not target.met(2.9)
    assert str(target) == "2.94 to 3.06"


def test_all_ways_have_the_same_slow_steps() -> None:
    plan = Plan("S2", [], turns=2, steps=200, compute=0.5, nbytes=0, folder="")
    first = [plan.seconds(0, 1, step) for step in range(200)]
    assert first == [plan.seconds(0, 1, step) for step in range(200)]
    assert first != [plan.seconds(1, 1, step) for step in range(200)]
    assert set(first) == {0.5, 0.5 * SLOW}
