"""Schedulers that are killed, and others that go on from what they had decided: real processes."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.multiprocess.control.processes import PATIENCE, Cluster, Process
from tests.real_etcd import RealEtcd


class Job:
    """A server and two workers of a scheduler that keeps its state at `state`."""

    def __init__(self, state: str) -> None:
        self.state = state
        self.cluster = Cluster(scheduler_state=state)
        self.server = self.cluster.start("server", num_servers=1)
        self.server.send("join")
        self.workers = self.cluster.workers(2, num_servers=1)
        self.server.outcome()
        self.declared = self.workers[0].ask("declare", name="w", shape=[1 << 20])["partitions"]

    def start_another(self) -> Process:
        """At the same address."""
        another = Process("scheduler", role="scheduler", scheduler=self.cluster.address, scheduler_state=self.state)
        self.cluster.processes.append(another)
        return another

    def replace_scheduler(self) -> None:
        self.cluster.scheduler.kill()
        self.cluster.scheduler.process.wait(10)
        self.cluster.scheduler = self.start_another()
        self.cluster.scheduler.hear("address")

    def leave(self) -> None:
        self.server.send("next_view")
        for worker in self.workers:
            assert worker.ask("leave")["seconds"] < 2
        assert self.server.outcome()["error"] == "ShutdownError"
        assert self.cluster.scheduler.process.wait(10) == 0


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealEtcd]:
    made = RealEtcd(tmp_path_factory.mktemp("etcd"))
    yield made
    made.kill()


@pytest.fixture(params=["folder", "etcd"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "folder":
        return str(tmp_path)
    return f"etcd://{request.getfixturevalue('etcd').endpoint}/{tmp_path.name}"


@pytest.fixture
def job(state: str) -> Iterator[Job]:
    made = Job(state)
    try:
        yield made
    finally:
        made.cluster.end()


def test_members_and_tensors_are_what_they_were(job: Job) -> None:
    first, second = job.workers
    for turn in range(3):
        job.replace_scheduler()
        assert second.ask("declare", name="w", shape=[1 << 20])["partitions"] == job.declared
        new = first.ask("declare", name=f"new {turn}", shape=[1 << 20])["partitions"]
        assert {key >> 16 for key, *_ in new} == {turn + 1}, "ids of tensors are never used twice"
        assert second.ask("declare", name=f"new {turn}", shape=[1 << 20])["partitions"] == new
        mismatch = second.ask("declare", name="w", shape=[7]) if turn == 2 else None
    assert mismatch is not None and mismatch["error"] == "MismatchError"
    assert "rank 1 declared float32 [7], but ranks 0, 1 declared float32 [1048576]" in mismatch["text"]


def test_who_is_in_a_barrier_meets_the_others_there(job: Job) -> None:
    first, second = job.workers
    for _ in range(2):
        first.send("barrier", name="a")
        second.ask("barrier", name="a")
        assert first.outcome()["answer"] == "barrier"
    first.send("barrier", name="a")
    job.replace_scheduler()
    assert second.ask("barrier", name="a")["answer"] == "barrier"
    assert first.outcome()["answer"] == "barrier"
    job.leave()


def test_a_barrier_ends_in_time_though_there_is_no_scheduler(job: Job) -> None:
    first, _ = job.workers
    first.send("barrier", name="a", timeout=2.0)
    job.cluster.scheduler.kill()
    failed = first.outcome()
    assert failed["error"] == "DeadlineError" and "out of reach for more than 2.0 s" in failed["text"]


def test_calls_wait_for_the_next_scheduler_and_its_members_are_watched(job: Job) -> None:
    first, second = job.workers
    job.cluster.scheduler.kill()
    job.cluster.scheduler.process.wait(10)
    first.send("declare", name="late", shape=[9])
    job.cluster.scheduler = job.start_another()
    assert first.outcome()["answer"] == "declare"
    deadline = time.monotonic() + PATIENCE
    while second.ask("status")["members"] != ["running"] * 3:
        assert time.monotonic() < deadline, "a member doesn't come back"
    pid = second.process.pid
    second.kill()
    failed = first.hear_failure()
    assert failed["error"] == "PeerLostError"
    assert f"worker 1 (host here, pid {pid}) died" in failed["text"]


def test_a_member_that_died_with_the_scheduler_is_named(job: Job) -> None:
    first, second = job.workers
    pid = second.process.pid
    job.cluster.scheduler.kill()
    second.kill()
    job.cluster.scheduler.process.wait(10)
    job.cluster.scheduler = job.start_another()
    failed = first.hear_failure()
    assert failed["error"] == "PeerLostError" and f"worker 1 (host here, pid {pid}) died" in failed["text"]


def test_one_rules_at_a_time_and_a_standby_takes_over(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = Process("scheduler", role="scheduler", scheduler="127.0.0.1:0", scheduler_state=job.state)
    job.cluster.processes.append(refused)
    assert refused.process.wait(10) != 0
    monkeypatch.setenv("STANDBY", "1")
    standby = Process("standby", role="scheduler", scheduler=job.cluster.address, scheduler_state=job.state)
    job.cluster.processes.append(standby)
    job.cluster.scheduler.kill(signal.SIGKILL)
    job.cluster.scheduler = standby
    standby.hear("address")
    assert job.workers[0].ask("declare", name="w", shape=[1 << 20])["partitions"] == job.declared
    job.leave()


def test_an_ended_job_is_forgotten(job: Job) -> None:
    job.leave()
    again = job.start_another()
    again.hear("address")
    worker = job.cluster.start("worker", world_size=1, num_servers=0)
    assert worker.ask("join", rank=0, force_distributed=True)["epoch"] == 1


def test_a_shorter_clock_names_the_dead_earlier(tmp_path: Path) -> None:
    cluster = Cluster(scheduler_state=str(tmp_path), failure_timeout=4)
    try:
        first, second = cluster.workers(2, failure_timeout=4)
        cluster.scheduler.kill()
        second.kill()
        cluster.scheduler.process.wait(10)
        cluster.scheduler = Process(
            "scheduler", role="scheduler", scheduler=cluster.address, scheduler_state=tmp_path, failure_timeout=4
        )
        cluster.processes.append(cluster.scheduler)
        cluster.scheduler.hear("address")
        began = time.monotonic()
        assert "worker 1 (host here, pid" in first.hear_failure()["text"]
        assert time.monotonic() - began < 5, "in 2 s, not in the 5 s of a failure_timeout of 10"
    finally:
        cluster.end()
