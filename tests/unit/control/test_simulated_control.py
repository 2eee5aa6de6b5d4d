"""Simulated control planes: they keep the rules, a seed has one history, and planted defects are found."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from itertools import count as numbers

import pytest

from byteps_like.control.simulated.defects import DEFECTS
from byteps_like.control.simulated.job import ControlJob
from byteps_like.control.simulated.loop import StuckError, VirtualLoop
from byteps_like.control.simulated.plan import FAULTS, ControlPlan, Fault, draw_plan
from byteps_like.control.simulated.running import CONTROL_PLANES, count, list_defects, show
from byteps_like.control.simulated.seeds import SeedRun, Simulation
from byteps_like.control.simulated.shrinking import smallest
from byteps_like.errors import InvalidArgumentError

SEEDS = 150
FOUND_WITHIN = 100
"""Seeds, within which each planted defect breaks a rule."""


@pytest.mark.parametrize("seeds", [range(first, first + 25) for first in range(0, SEEDS, 25)], ids=str)
def test_no_seed_breaks_a_rule(seeds):
    for seed in seeds:
        assert CONTROL_PLANES.judge(seed).complaints == [], f"seed {seed}"


@pytest.mark.parametrize("defect", [name for name in DEFECTS if name])
def test_planted_defects_are_found(defect):
    assert any(CONTROL_PLANES.judge(seed, defect).complaints for seed in range(FOUND_WITHIN)), defect


def test_seeds_try_everything_and_have_one_history_each():
    plans = [draw_plan(seed) for seed in range(100)]
    assert {fault.what for plan in plans for fault in plan.faults} == set(FAULTS)
    assert {plan.servers for plan in plans} == {0, 1, 2, 3} and {plan.workers for plan in plans} == set(range(2, 7))
    for seed in (1, 5, 21, 58):
        first, second = ControlJob(seed), ControlJob(seed)
        first.run()
        second.run()
        assert first.trace == second.trace and len(first.trace) > 10, f"seed {seed}"


def test_a_barrier_that_is_asked_for_again_lets_nobody_go_from_the_next_one():
    """One worker hears late that a scheduler has ended, and asks another one for a barrier that is over."""
    faults = [("kill", 6, 4.38), ("long stall", 3, 8.15), ("reset", 1, 8.79), ("kill scheduler", 5, 9.68)]
    faults += [("kill server", 4, 10.44), ("kill", 3, 11.4), ("kill", 0, 15.4), ("kill", 4, 19.95)]
    plan = ControlPlan(5, 2, 2, tuple(Fault(at, what, who, 1.75) for what, who, at in faults), 65.3)
    assert ControlJob(265, plan).run() == []


@pytest.mark.parametrize("what", FAULTS)
def test_one_fault_after_the_other(what):
    faults = tuple(Fault(2.0 + 3.0 * who, what, who, 0.3) for who in range(3))
    job = ControlJob(1, ControlPlan(3, 2, 1, faults, 45.0))
    assert job.run() == []
    assert job.schedulers == (4 if what == "kill scheduler" else job.schedulers)
    assert job.views >= (4 if what in ("kill", "kill server") else 1)


@pytest.mark.parametrize("copies", [0, 1, 2])
@pytest.mark.parametrize(("who", "name"), [(0, "server 1"), (3, "worker 4")])
def test_who_is_asked_to_leave_leaves(copies, who, name):
    job = ControlJob(2, ControlPlan(3, 2, 1, (Fault(5.0, "drain", who, 0.0),), 30.0, copies))
    assert job.run() == []
    said = [line.split(maxsplit=1)[1] for line in job.trace]
    assert f"operator: {name} is drained: left" in said
    assert (f"{name}: hands over what it keeps" in said) == (name == "server 1" and copies > 0)
    assert ("worker 6: ends well" in said or "server 6: ends well" in said) == (who % 2 == 0), "replaced, or not"


def test_shrinking_keeps_what_breaks_a_rule():
    plan = draw_plan(0)
    found = smallest(0, plan, "early-barriers")
    assert ControlJob(0, found, "early-barriers").run() != []
    assert len(found.faults) < max(len(plan.faults), 1) or found.workers < plan.workers or found.servers < plan.servers
    assert smallest(0, plan, "") == plan


def test_time_goes_by_only_while_everybody_waits():
    loop = VirtualLoop()

    async def wait() -> list[float]:
        seen = []
        for seconds in (3600.0, 0.5):
            await asyncio.sleep(seconds)
            seen.append(loop.time())
        return seen

    assert loop.run_until_complete(wait()) == [3600.0, 3600.5]
    with pytest.raises(StuckError):
        loop.run_until_complete(asyncio.Event().wait())
    loop.close()


def test_what_the_command_prints(capsys):
    assert count(range(2), "", 1)
    assert "2 control planes, 0 broken" in capsys.readouterr().out
    assert not show(0, "early-barriers", shrink=False)
    shown = capsys.readouterr().out
    assert "BROKEN: " in shown and "seed 0: " in shown and "rules in term 1" in shown
    list_defects()
    assert "forgets: " in capsys.readouterr().out
    with pytest.raises(InvalidArgumentError, match="nonsense is none of forgets"):
        CONTROL_PLANES.judge(0, "nonsense")


def test_seeds_are_counted_in_their_order(capsys):
    def run(seed: int, defect: str) -> SeedRun:
        return SeedRun([f"{defect} {seed}", "another"] if seed % 30 == 7 else [], seed, (seed, 0.25))

    jobs = Simulation("jobs", "{} steps, {:.0f} s", "again SEED", run)
    with ThreadPoolExecutor(3) as pool:
        assert not jobs.count(range(100), "late", pool)
        assert jobs.count(range(2), "", pool)
    *broken, summary, replay, all_well = capsys.readouterr().out.splitlines()
    assert broken == [f"seed {seed}: late {seed}" for seed in (7, 37, 67, 97)]
    assert (
        summary.startswith("100 jobs, 4 broken: 4950 steps, 25 s in ")
        and replay == "replay one: again SEED --defect late"
    )
    assert all_well.startswith("2 jobs, 0 broken: 1 steps, 0 s in ")


def test_a_seed_with_another_history_each_time_is_found():
    histories = numbers()
    jobs = Simulation("jobs", "", "", lambda seed, defect: SeedRun([], next(histories), ()))
    assert jobs.judge(300).complaints == ["it has another history each time"]
    assert jobs.judge(301).complaints == []
