"""Schedulers at several addresses, of which one rules: workers that make steps find the next, whatever ends a rule."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("byteps_like._core")

from tests.fakes.firewall import Firewall
from tests.multiprocess.control.processes import ROOT, SECRET
from tests.ports import HeldPorts
from tests.real_etcd import RealEtcd

STEPS = """
import os, sys, time
import numpy as np
from byteps_like.config import Config
from byteps_like.dtypes import DType, Op
from byteps_like.worker.api import TensorSpec
from byteps_like.worker.session import connect

def told(what):
    return os.path.exists(os.path.join(sys.argv[1], what))

worker = connect(Config.from_env())
(declared,) = worker.declare([TensorSpec("at first", DType.INT64, (4,))])
step, seen = 0, np.zeros(4, np.int64)
while not seen[1]:
    seen[:] = worker.rank + 1, told("stop"), step, told("ask")
    worker.push_pull(declared, seen.ctypes.data, Op.SUM).wait(60)
    assert (seen[0], seen[2]) == (3, 2 * step)
    step += 1
    if step % 10 == 0:
        if seen[3]:
            (declared,) = worker.declare([TensorSpec(f"at {step}", DType.INT64, (4,))])
            worker.barrier()
        print("asked" if seen[3] else "step", step, flush=True)
    time.sleep(0.005)
worker.close()
print("done", flush=True)
"""
SECONDS = 30.0
RULES, STEP, ASKED = "listens on", "step ", "asked "


class Spoken:
    """A process, what it has said, and how it has ended."""

    def __init__(self, log: Path, command: list[str], environment: dict[str, str]) -> None:
        self.log, self._read = log, 0
        with log.open("wb") as out:
            self.process = subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT)

    def await_words(self, words: str, times: int = 1) -> None:
        """Until it has said them so often since the last time."""
        wait_until(lambda: self.log.read_text()[self._read :].count(words) >= times, lambda: self.log.read_text())
        self._read = len(self.log.read_text())

    def says(self, words: str) -> bool:
        return words in self.log.read_text()

    def await_end(self) -> int:
        return self.process.wait(SECONDS)


def wait_until(holds: Callable[[], bool], explain: Callable[[], str]) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline, explain()
        time.sleep(0.02)


class Job:
    """Two schedulers, a server and two workers that make steps, each with both addresses."""

    def __init__(self, folder: Path, *states: str) -> None:
        """`states`: of each scheduler."""
        self.folder, self.states, self.started = folder, states, list[Spoken]()
        self._held = HeldPorts(2)
        self.ports = self._held.numbers
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("BYTEPS_", "DMLC_", "GRPC_"))}
        self._environment = clean | {
            "BYTEPS_LIKE_SCHEDULER": ",".join(f"127.0.0.1:{port}" for port in self.ports),
            "BYTEPS_LIKE_SECRET": SECRET,
            "BYTEPS_LIKE_JOB": "standby",
            "BYTEPS_LIKE_WORLD_SIZE": "2",
            "BYTEPS_LIKE_NUM_SERVERS": "1",
            "PYTHONPATH": str(ROOT),
        }
        self.schedulers = [self.start_scheduler(0)]
        self.schedulers[0].await_words(RULES)
        self.schedulers.append(self.start_scheduler(1))
        self.server = self._start("server", ["-m", "byteps_like", "server"])
        self.workers = [self._start("worker", ["-c", STEPS, str(folder)]) for _ in range(2)]
        self.workers[0].await_words(STEP, 2)

    def start_scheduler(self, number: int) -> Spoken:
        port = str(self.ports[number])
        where = ["--host", "127.0.0.1", "--port", port, "--state", self.states[number], "--standby"]
        return self._start("scheduler", ["-m", "byteps_like", "scheduler", *where])

    def ask(self, holds: bool) -> None:
        """From now on the steps need a scheduler, or don't."""
        if holds:
            (self.folder / "ask").touch()
        else:
            (self.folder / "ask").unlink()

    def end(self) -> None:
        (self.folder / "stop").touch()
        for worker in self.workers:
            assert worker.await_end() == 0, worker.log.read_text()
        assert self.server.await_end() == 0, self.server.log.read_text()

    def kill(self) -> None:
        for one in self.started:
            one.process.kill()
            one.process.wait(10)
        self._held.close()

    def _start(self, name: str, arguments: list[str]) -> Spoken:
        log = self.folder / f"{len(self.started)} {name}.log"
        environment = self._environment | {"BYTEPS_LIKE_ROLE": name}
        self.started.append(Spoken(log, [sys.executable, *arguments], environment))
        return self.started[-1]


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[RealEtcd]:
    made = RealEtcd(tmp_path / "etcd")
    yield made
    made.kill()


@pytest.fixture(params=["folder", "etcd"])
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Job]:
    state = str(tmp_path / "state")
    if request.param == "etcd":
        state = f"etcd://{request.getfixturevalue('etcd').endpoint}"
    yield from a_job(tmp_path, state, state)


def a_job(folder: Path, *states: str) -> Iterator[Job]:
    (folder / "job").mkdir()
    made = Job(folder / "job", *states)
    try:
        yield made
    finally:
        made.kill()


only_etcd = pytest.mark.parametrize("job", ["etcd"], indirect=True)


def test_one_that_is_killed_is_followed_by_its_standby(job: Job) -> None:
    job.ask(True)
    job.workers[0].await_words(ASKED, 2)
    for turn in range(3):
        ruling, waiting = turn % 2, (turn + 1) % 2
        job.schedulers[ruling].process.kill()
        job.schedulers[waiting].await_words(RULES)
        job.workers[0].await_words(ASKED, 3)
        job.schedulers[ruling] = job.start_scheduler(ruling)
    job.end()
    assert {one.await_end() for one in job.schedulers} == {0}, "the standby hears that the job has ended"


@only_etcd
def test_one_that_was_stopped_for_longer_than_its_lease_rules_no_more(job: Job) -> None:
    old, standby = job.schedulers
    old.process.send_signal(signal.SIGSTOP)
    job.workers[0].await_words(STEP, 2)
    standby.await_words(RULES)
    job.ask(True)
    job.workers[0].await_words(ASKED, 3)
    old.process.send_signal(signal.SIGCONT)
    assert old.await_end() == 1
    assert old.says("this scheduler ends, and the job goes on")
    job.workers[0].await_words(ASKED, 3)
    job.end()


@only_etcd
def test_steps_go_on_without_the_etcd_and_all_else_when_it_is_back(job: Job, etcd: RealEtcd) -> None:
    etcd.kill()
    assert job.schedulers[0].await_end() == 1, "the rule ends"
    job.workers[0].await_words(STEP, 5)
    job.ask(True)
    etcd.start()
    job.schedulers[1].await_words(RULES)
    job.workers[0].await_words(ASKED, 3)
    job.end()


def test_one_that_is_cut_off_from_the_etcd_rules_no_more(etcd: RealEtcd, tmp_path: Path) -> None:
    wall = Firewall(etcd.endpoint)
    for job in a_job(tmp_path, f"etcd://{wall.address}", f"etcd://{etcd.endpoint}"):
        job.ask(True)
        for _ in range(3):
            with wall.resetting():
                time.sleep(0.5)
            job.workers[0].await_words(ASKED, 3)
        assert job.schedulers[0].process.poll() is None, "it is back within its lease"
        with wall.resetting():
            job.schedulers[1].await_words(RULES)
            assert job.schedulers[0].await_end() == 1
            job.workers[0].await_words(ASKED, 3)
        job.end()
    wall.close()
