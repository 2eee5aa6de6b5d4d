"""Time shifts: against brute force and a fluid model, and the slots that keep them."""

from __future__ import annotations

import itertools
import json
import random
import statistics

import numpy as np
import pytest
from typer.testing import CliRunner

from byteps_like.cli.main import app
from byteps_like.errors import InvalidArgumentError
from byteps_like.planner.shift.fluid import step_times
from byteps_like.planner.shift.jobs import parse_job, trace_job
from byteps_like.planner.shift.plan import Arc, PeriodicJob, common_period, plan_shifts
from byteps_like.worker.pace import Pace

HALVES = [PeriodicJob(name, 2.0, (Arc(1.0, 1.0, 10.0),)) for name in "ab"]


def mean_steps(jobs: list[PeriodicJob], gbps: float, paced: bool, steps: int = 100, **noise: float) -> dict[str, float]:
    plan = plan_shifts(jobs, gbps)
    paces = {name: Pace(shift, plan.periods[name]) for name, shift in plan.shifts.items()} if paced else None
    times = step_times(jobs, gbps, steps, paces=paces, **noise)
    return {name: statistics.mean(found) for name, found in times.items()}


def test_two_jobs_of_a_second_each_go_from_three_seconds_to_two() -> None:
    plan = plan_shifts(HALVES, 10.0, slack=0.0)
    assert plan.score == pytest.approx(1.0)
    assert abs(plan.shifts["a"] - plan.shifts["b"]) == pytest.approx(1.0, abs=0.01)
    assert mean_steps(HALVES, 10.0, paced=False) == {"a": pytest.approx(3.0), "b": pytest.approx(3.0)}
    assert mean_steps(HALVES, 10.0, paced=True) == {"a": pytest.approx(2.08), "b": pytest.approx(2.08)}


@pytest.mark.parametrize("seed", range(4))
def test_drift_is_corrected_for_a_hundred_steps(seed: int) -> None:
    free = mean_steps(HALVES, 10.0, paced=False, jitter=0.02, seed=seed)
    paced = mean_steps(HALVES, 10.0, paced=True, jitter=0.02, seed=seed)
    # Two jobs left alone drift apart by chance, sooner or later.
    assert all(paced[name] < 2.12 and paced[name] * 1.25 < free[name] < 3.0 for name in paced)


def test_a_hiccup_is_forgotten() -> None:
    class Hiccup(Pace):
        """Is told once that it is 0.7 s later than it is."""

        calls = 0

        def wait(self, now: float) -> float:
            self.calls += 1
            return super().wait(now) + 0.7 * (self.calls == 20)

    plan = plan_shifts(HALVES, 10.0)
    paces = {"a": Hiccup(plan.shifts["a"], plan.periods["a"]), "b": Pace(plan.shifts["b"], plan.periods["b"])}
    for times in step_times(HALVES, 10.0, 60, paces=paces).values():
        assert statistics.mean(times[40:]) == pytest.approx(2.08)
        assert max(times) < 3 * 2.08


def brute_force(jobs: list[PeriodicJob], gbps: float, slots: int) -> float:
    """The best score of all turns of `slots` places, for jobs of one period."""
    period = jobs[0].period
    middles = (np.arange(1200) + 0.5) * period / 1200

    def demand(job: PeriodicJob, shift: float) -> np.ndarray:
        return sum(arc.gbps * ((middles - shift - arc.start) % period < arc.length) for arc in job.arcs)

    rows = [[demand(job, turn * period / slots) for turn in range(slots)] for job in jobs[1:]]
    fixed = demand(jobs[0], 0.0)
    over = (np.maximum(fixed + sum(chosen) - gbps, 0.0).mean() for chosen in itertools.product(*rows))
    return 1.0 - min(over) / gbps


@pytest.mark.parametrize(("seed", "count"), [(1, 2), (2, 2), (3, 2), (4, 3), (5, 3), (6, 3)])
def test_no_turn_of_the_circles_is_better(seed: int, count: int) -> None:
    chance = random.Random(seed)
    jobs = [
        PeriodicJob(str(number), 1.0, tuple(
            Arc(chance.uniform(0.0, 0.99), chance.uniform(0.05, 0.3), chance.uniform(2.0, 9.0)) for _ in range(2)
        )) for number in range(count)
    ]  # fmt: skip
    assert plan_shifts(jobs, 10.0, slack=0.0).score >= brute_force(jobs, 10.0, 60 if count == 2 else 24) - 0.003


def test_periods_are_laid_on_one_circle() -> None:
    assert common_period([2.0, 2.0]) == ([1, 1], 2.0)
    assert common_period([1.0, 1.5]) == ([3, 2], 3.0)
    counts, length = common_period([1.0, 0.99, 2.01])
    assert counts == [2, 2, 1] and length == 2.01
    assert all(length / count >= period for count, period in zip(counts, [1.0, 0.99, 2.01], strict=True))
    with pytest.raises(InvalidArgumentError, match="no common multiple"):
        common_period([1.0, 2.0**0.5, 1.234567], tolerance=1e-4)


def test_jobs_of_different_periods_fit_between_each_other() -> None:
    jobs = [PeriodicJob("slow", 2.0, (Arc(0.0, 0.9, 10.0),)), PeriodicJob("quick", 1.0, (Arc(0.0, 0.1, 10.0),))]
    assert plan_shifts(jobs, 10.0).score == pytest.approx(1.0, abs=1e-6)
    assert plan_shifts([jobs[0], PeriodicJob("full", 1.0, (Arc(0.0, 0.7, 10.0),))], 10.0).score < 0.9


def test_jobs_on_several_links_are_shifted_consistently() -> None:
    third = (Arc(0.0, 0.3, 10.0),)
    half = (Arc(0.0, 0.48, 10.0),)
    chain = [
        PeriodicJob("a", 1.0, half, ("1",)),
        PeriodicJob("b", 1.0, half, ("1", "2")),
        PeriodicJob("c", 1.0, half, ("2", "3")),
        PeriodicJob("d", 1.0, half, ("3",)),
        PeriodicJob("alone", 1.7, half, ("4",)),
    ]
    plan = plan_shifts(chain, 10.0)
    assert plan.score == pytest.approx(1.0, abs=1e-6)
    assert {link.name: link.jobs for link in plan.links}["2"] == ("b", "c") and plan.shifts["alone"] == 0.0
    cycle = [
        PeriodicJob("a", 1.0, third, ("1", "3")),
        PeriodicJob("b", 1.0, third, ("1", "2")),
        PeriodicJob("c", 1.0, third, ("2", "3")),
    ]
    assert plan_shifts(cycle, 10.0).score == pytest.approx(1.0, abs=1e-6)


def test_jobs_as_text() -> None:
    assert parse_job("2:1:0.5:10") == PeriodicJob("A", 2.0, (Arc(1.0, 0.5, 10.0),))
    two = parse_job("x=2:0:.5:10,1:.5:4@rack1+rack2", 1)
    assert two == PeriodicJob("x", 2.0, (Arc(0.0, 0.5, 10.0), Arc(1.0, 0.5, 4.0)), ("rack1", "rack2"))
    for wrong in ("2", "2:1", "2:1:x:3", "2:3:1:10", "0:0:1:1"):
        with pytest.raises(InvalidArgumentError):
            parse_job(wrong)


def test_a_trace_gives_period_and_arcs(tmp_path) -> None:
    def event(cat: str, name: str, start: float, seconds: float, **args: object) -> dict:
        return {"ph": "X", "pid": 0, "cat": cat, "name": name, "ts": start * 1e6, "dur": seconds * 1e6, "args": args}

    events = []
    for step in range(3):
        at = 10.0 + 2.0 * step
        events += [
            event("forward", "forward", at, 0.1, layer="in"),
            event("forward", "forward", at + 0.1, 0.1, layer="out"),
        ]
        for part in range(2):
            where = {"key": part, "round": step, "bytes": 625_000_000}
            events.append(event("partition", "queued", at + 1.0 + 0.5 * part, 0.1, **where))
            events.append(event("partition", "received", at + 1.4 + 0.5 * part, 0.1, **where))
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [*events, {"ph": "M", "pid": 0}]}))
    job = trace_job(path, "t")
    assert job.period == pytest.approx(2.0) and len(job.arcs) == 1
    assert (job.arcs[0].start, job.arcs[0].length, job.arcs[0].gbps) == pytest.approx((1.0, 1.0, 10.0))
    path.write_text("{}")
    with pytest.raises(InvalidArgumentError, match="is not a trace"):
        trace_job(path, "t")


def test_the_command_prints_settings_and_draws(tmp_path) -> None:
    picture = tmp_path / "shift.svg"
    found = CliRunner().invoke(app, ["plan", "shift", "2:1:1:10", "2:1:1:10", "--draw", str(picture)])
    assert found.exit_code == 0, found.output
    assert "1.44x" in found.output and "2.0800" in found.output and "1.0400" in found.output
    assert picture.read_text().count("</svg>") == 1
    wrong = CliRunner().invoke(app, ["plan", "shift", "2:1:1:10", "--link", "other=3"])
    assert isinstance(wrong.exception, InvalidArgumentError)


def test_slots_are_kept() -> None:
    pace = Pace(0.5, 2.0)
    assert pace.wait(100.0) == pytest.approx(0.5)  # to 100.5
    assert pace.wait(102.3) == pytest.approx(0.2)  # to 102.5
    assert pace.wait(104.65) == 0.0  # a little late
    assert pace.wait(106.4) == pytest.approx(0.1)  # and caught up
    assert pace.wait(108.7) == pytest.approx(1.8)  # too late: to 110.5
    assert pace.skipped == 1 and pace.period == 2.0


def test_a_period_that_is_too_short_is_stretched_alike(caplog) -> None:
    paces = [Pace(offset, 1.0) for offset in (0.0, 0.5)]
    ends = []
    for pace, busy in zip(paces, (1.19, 1.17), strict=True):
        now = 1000.0
        for _ in range(40):
            now += pace.wait(now) + busy
        ends.append(now)
    assert paces[0].period == paces[1].period == pytest.approx(1.05**4)
    assert paces[1].offset / paces[1].period == pytest.approx(0.5)
    assert ends[0] < 1000.0 + 40 * 1.35 and "longer than step_period=1 s" in caplog.text
