"""Who is killed, and whose place stays empty, in a job of processes that only seem to be; and what is reported."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from byteps_like.launch.chaos import disturber as disturbing
from byteps_like.launch.chaos.disturber import STANDSTILL, STARTING, ChaosPlan, Disturber
from byteps_like.launch.chaos.growth import ProcessGrowth
from byteps_like.launch.chaos.report import Bounds, ChaosReport
from byteps_like.launch.chaos.schedule import Violence
from byteps_like.launch.child import ChildPart
from byteps_like.launch.lines import Tail


class SeemingChild:
    """A process of the launcher's, which dies when it is killed."""

    def __init__(self, job: SeemingJob, part: ChildPart, pid: int) -> None:
        self.part, self.process = part, SimpleNamespace(pid=pid)
        self.exit_status: int | None = None
        self.ended_at: float | None = None
        self.signalled: signal.Signals | None = None
        self.stderr = self.stdout = SimpleNamespace(tail=Tail())
        self._job = job

    def signal(self, number: signal.Signals) -> None:
        self.signalled = number
        self._job.dying.append((self, -number))


class SeemingJob:
    """Workers that make ten steps a second, servers and a scheduler, and a launcher that replaces who dies."""

    def __init__(self, plan: ChaosPlan, workers: int = 4, servers: int = 2) -> None:
        self.said: list[str] = []
        self.disturber = Disturber(plan, self.said.append)
        self.now, self.step, self.over = 0.0, 0, False
        self.children: list[SeemingChild] = []
        self.dying: list[tuple[SeemingChild, int]] = []
        self.empty: list[ChildPart] = []
        self.fewest = Counter({"worker": workers, "server": servers, "scheduler": 1})
        self.is_stepping: Callable[[], bool] = lambda: True
        self._pids = iter(range(1_000_000, 2_000_000))
        for role, count in self.fewest.items():
            for rank in range(count):
                self._start(ChildPart(role, rank))

    def _start(self, part: ChildPart) -> None:
        self.children.append(SeemingChild(self, part, next(self._pids)))
        self.disturber.started(self.children[-1], self.now)  # type: ignore[arg-type]

    def end(self, child: SeemingChild, status: int) -> None:
        self.children.remove(child)
        child.exit_status, child.ended_at = status, self.now
        self.disturber.ended(child, self.now)  # type: ignore[arg-type]
        self.empty.append(child.part)

    def run(self, seconds: float) -> None:
        """The launcher's loop, ten times a second."""
        for _ in range(round(seconds * 10)):
            if self.over:
                return
            self.now += 0.1
            self.step += self.is_stepping()
            for child in list(self.children):
                if child.part.role == "worker" and self.is_stepping():
                    shown = self.disturber.line(child, b"step %d" % self.step, self.now)  # type: ignore[arg-type]
                    assert not shown
            self.over = self.disturber.act(self.now)
            assert (self.disturber.next_at() or self.now + 1) > self.now, "the launcher would spin"
            for child, status in self.dying:
                self.end(child, status)
            self.dying.clear()
            for part in [part for part in self.empty if part not in self.disturber.held]:
                self.empty.remove(part)
                self._start(part)
            there = Counter(child.part.role for child in self.children)
            self.fewest = Counter({role: min(count, there[role]) for role, count in self.fewest.items()})

    def report(self, exit_code: int = 0) -> ChaosReport:
        return ChaosReport.of(self.disturber, exit_code, self.now)


def plan(seconds: float = 60.0, **how: Any) -> ChaosPlan:
    violence = Violence(**({"seed": 5, "every": (0.5, 2.0)} | how))
    return ChaosPlan(violence, seconds, calm=10.0, least={"worker": 2, "server": 2})


def test_nothing_happens_while_it_is_calm() -> None:
    job = SeemingJob(plan())
    job.run(10.0)
    assert job.disturber.blows == []
    job.run(5.0)
    assert job.disturber.blows


def test_no_less_than_the_least_are_there_and_all_come_back() -> None:
    job = SeemingJob(plan(600.0, spawn=0.2))
    job.run(700.0)
    assert job.over
    assert job.fewest == {"worker": 2, "server": 2, "scheduler": 1}
    killed = Counter(blow.part.role for blow in job.disturber.blows)
    assert min(killed.values()) > 0.25 * sum(killed.values()), "each kind about as often as the others"
    absent = [blow for blow in job.disturber.blows if not blow.spawned]
    assert absent and all(blow.part.role == "worker" for blow in absent), "the others are never too many"
    assert len(absent) > 20, "who was away has come back, or there would soon be no more of them"


def test_all_are_replaced_at_once_if_the_share_is_one() -> None:
    job = SeemingJob(plan(spawn=1.0))
    job.run(80.0)
    assert all(blow.spawned for blow in job.disturber.blows) and job.empty == []


def test_the_last_who_know_how_far_the_job_has_come_are_left_alone() -> None:
    """New workers that have not yet made a step don't count."""
    job = SeemingJob(plan(kinds=("worker",)))
    job.run(9.0)
    knowing = {child.process.pid for child in job.children if child.part.role == "worker"}
    steps, job.is_stepping = job.disturber.line, lambda: True
    job.disturber.line = lambda child, text, now: (  # type: ignore[method-assign]
        steps(child, text, now) if child.process.pid in knowing else False
    )
    job.run(45.0)
    assert len(job.disturber.blows) > 10
    assert len(knowing & {child.process.pid for child in job.children}) == 2


def test_who_is_stopped_goes_on_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(disturbing.os, "killpg", lambda pid, number: sent.append((pid, number)))
    job = SeemingJob(plan(pauses=1.0))
    job.run(80.0)
    assert job.over and len(job.disturber.blows) > 20
    stopped = [pid for pid, number in sent if number == signal.SIGSTOP]
    assert len(stopped) == len(job.disturber.blows)
    assert sorted(stopped) == sorted(pid for pid, number in sent if number == signal.SIGCONT)
    assert all(blow.paused for blow in job.disturber.blows) and job.report().broken(Bounds()) == []


def test_one_of_each_kind_is_left_alone_until_it_is_known_whether_it_grows() -> None:
    job = SeemingJob(plan(400.0, every=(1.0, 1.0)))
    begun = {child.process.pid: child.part.role for child in job.children}
    job.run(179.0)
    roles = Counter(begun[pid] for pid in begun if pid in {child.process.pid for child in job.children})
    assert roles["worker"] >= 1 and roles["server"] >= 1 and roles["scheduler"] == 1
    short = SeemingJob(plan(60.0, every=(1.0, 1.0), kinds=("scheduler",)))
    short.run(80.0)
    assert len(short.disturber.blows) > 40


def test_the_same_seed_meets_the_same_processes() -> None:
    jobs = [SeemingJob(plan()) for _ in range(2)]
    for job in jobs:
        job.run(50.0)
    assert jobs[0].said == jobs[1].said and len(jobs[0].disturber.blows) > 20


def test_a_worker_that_is_done_ends_the_disturbances() -> None:
    job = SeemingJob(plan())
    job.run(20.0)
    job.is_stepping = lambda: False
    worker = next(child for child in job.children if child.part.role == "worker")
    job.now += 4.0  # it has written its result
    job.end(worker, 0)
    before = len(job.disturber.blows)
    job.run(10.0)
    assert len(job.disturber.blows) == before and not job.over, "the launcher sees the end of the job"
    report = job.report()
    assert report.broken(Bounds(max_gap=2)) == [] and report.seconds == pytest.approx(19.9)


def test_figures_are_those_of_the_steps() -> None:
    job = SeemingJob(plan(30.0, every=(3.0, 3.0), kinds=("worker",)))
    job.is_stepping = lambda: not 13.0 < job.now < 15.0
    job.run(60.0)
    report = job.report()
    assert report.gap == pytest.approx(2.1, abs=0.11) and report.gap_at == pytest.approx(14.9, abs=0.11)
    assert report.step == pytest.approx(0.1, rel=0.03)
    assert report.goodput == pytest.approx(18 / 20, abs=0.02)
    assert report.broken(Bounds(max_gap=2.5, min_goodput=0.85)) == []
    assert [text.split(" is ")[0] for text in report.broken(Bounds(max_gap=1.5, min_goodput=0.95))] == [
        "the longest gap of 2.10 s", "the goodput of 90.0%",
    ]  # fmt: skip
    (worst,) = [blow for blow in report.blows if blow.gap > 2.0]
    assert worst.at == pytest.approx(13.1, abs=0.2)
    assert "gaps after killing a worker: median" in "\n".join(report.lines())
    assert json.loads(json.dumps(report.as_json()))["blows"][0]["part"]["role"] == "worker"


def test_a_process_that_nobody_has_killed_is_named() -> None:
    job = SeemingJob(plan())
    job.run(5.0)
    server = next(child for child in job.children if child.part.role == "server")
    server.stderr.tail.add(b"ValueError: of its own", job.now)
    job.end(server, 1)
    job.run(80.0)
    assert job.report().broken(Bounds()) == ["nobody has killed server 0 (exit code 1): ValueError: of its own"]


def test_a_job_that_stands_still_is_given_up() -> None:
    job = SeemingJob(plan(600.0))
    job.is_stepping = lambda: job.now < 20.0
    job.run(19.9 + STANDSTILL)
    assert not job.over
    job.run(3.0)
    assert job.over
    (why,) = job.report().broken(Bounds())
    assert why.startswith("the job stood still: no step for 6")


def test_a_job_that_never_begins_is_given_up() -> None:
    job = SeemingJob(plan())
    job.is_stepping = lambda: False
    job.run(STARTING)
    assert not job.over
    job.run(3.0)
    assert job.over
    assert job.report().broken(Bounds())[0].startswith("no worker has printed that it made a step")


def test_the_time_is_over_only_after_one_more_step() -> None:
    job = SeemingJob(plan(30.0, kinds=("worker",)))
    job.is_stepping = lambda: not 28.0 < job.now < 40.0
    job.run(39.0)
    assert not job.over
    job.run(2.0)
    assert job.over and job.report().broken(Bounds()) == []


def test_growth_beyond_its_bounds_is_named() -> None:
    job = SeemingJob(plan(30.0))
    job.run(60.0)
    grown = ProcessGrowth("server 1", 70.0, 40 << 20, 12)
    job.disturber.growth.found = lambda: [grown]  # type: ignore[method-assign]
    report = job.report()
    assert report.broken(Bounds(max_growth=64, max_descriptors=20)) == []
    assert report.broken(Bounds(max_growth=32, max_descriptors=8)) == [
        "server 1 grew by 40.0 MiB and 12 descriptors in 70 s is more than --max-growth 32 MiB",
        "server 1 grew by 40.0 MiB and 12 descriptors in 70 s is more than --max-descriptors 8",
    ]
    assert report.lines()[-1] == "after its first 2 minutes server 1 grew by 40.0 MiB and 12 descriptors in 70 s"


def test_goodput_needs_steps_while_it_is_calm() -> None:
    job = SeemingJob(plan(30.0))
    job.is_stepping = lambda: job.now % 2.0 < 0.05
    job.run(60.0)
    report = job.report()
    assert report.goodput is None
    assert report.broken(Bounds(min_goodput=0.5)) == [
        "the goodput isn't known: fewer than 10 steps were made in the second half of --calm"
    ]


def test_a_job_that_fails_fails_the_test() -> None:
    job = SeemingJob(plan(30.0))
    job.run(60.0)
    assert job.report(exit_code=3).broken(Bounds()) == ["the job failed with exit code 3"]
