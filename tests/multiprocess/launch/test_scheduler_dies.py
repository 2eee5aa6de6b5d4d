"""`byteps-like run` whose scheduler dies: steps go on, another one takes over, and not without end."""

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("byteps_like._core")

from launcher import ROOT, wait_until

from tests.real_etcd import RealEtcd

STEPS = """
import os, time
import numpy as np
from byteps_like.config import Config
from byteps_like.dtypes import DType, Op
from byteps_like.worker.api import TensorSpec
from byteps_like.worker.session import connect

worker = connect(Config.from_env())
stop = os.path.join(os.path.dirname(os.environ["BYTEPS_LIKE_SECRET_FILE"]), "stop")
going = np.ones(3, np.int64)
step = 0
while going[1] > 0:
    (declared,) = worker.declare([TensorSpec(f"gradient {step // 20}", DType.INT64, (3,))])  # new ones while it is away
    going[:] = worker.rank + 1, not os.path.exists(stop), step
    worker.push_pull(declared, going.ctypes.data, Op.SUM).wait(60)
    assert (going[0], going[2]) == (3, 2 * step)
    if step % 20 == 0:
        worker.barrier()
        print("step", step, flush=True) if worker.rank == 0 else None
    step += 1
    time.sleep(0.005)
print("done", flush=True)
worker.close()
"""


def kill_scheduler(launcher):
    """Which is seen by its command."""
    for pid in launcher.left():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            if b"scheduler" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                os.kill(pid, signal.SIGKILL)
                return True
    return False


def some_steps(process, count=3):
    for _ in range(count):
        assert b"step" in process.stdout.readline()


def test_steps_go_on_and_another_one_takes_over(launcher):
    process = launcher.start("-n 2 -s 1", sys.executable, "-c", STEPS)
    some_steps(process)
    for _ in range(3):
        wait_until(lambda: kill_scheduler(launcher))
        some_steps(process)
        time.sleep(0.5)
    (launcher.files()[0] / "stop").touch()
    result = launcher.finish(process)
    assert result.code == 0, result
    assert result.out.count("done") == 2
    assert result.err.count("the scheduler died (killed by signal 9 (SIGKILL)); another one goes on") == 3
    assert launcher.left() == []


@pytest.mark.parametrize("place", ["folder", "etcd"])
def test_its_state_may_be_elsewhere(launcher, tmp_path, place):
    etcd = RealEtcd(tmp_path / "etcd") if place == "etcd" else None
    try:
        state = tmp_path / "state" if etcd is None else f"etcd://{etcd.endpoint}/launched"
        process = launcher.start(f"-n 2 -s 1 --job named --state {state}", sys.executable, "-c", STEPS)
        some_steps(process)
        wait_until(lambda: kill_scheduler(launcher))
        some_steps(process)
        (launcher.files()[0] / "stop").touch()
        result = launcher.finish(process)
        assert result.code == 0, result
        assert result.out.count("done") == 2 and "another one goes on where it stopped" in result.err
        if etcd is None:
            assert list(state.iterdir()), "nothing is there"
        else:
            assert "launched/named/head" in etcd.control("get", "--prefix", "--keys-only", "launched/")
    finally:
        if etcd is not None:
            etcd.kill()


def test_a_place_that_can_not_be_one_ends_the_job(launcher):
    result = launcher.run("-n 1 --state zookeeper://a:1", sys.executable, "-c", STEPS)
    assert result.code == 2 and "is neither a folder nor one of etcd, etcds://" in result.err, result


def test_schedulers_that_die_one_after_the_other_end_the_job(launcher):
    process = launcher.start("-n 2 -s 1", sys.executable, "-c", STEPS)
    some_steps(process)
    deadline = time.monotonic() + 15
    while process.poll() is None and time.monotonic() < deadline:
        kill_scheduler(launcher)
        time.sleep(0.1)
    result = launcher.finish(process)
    assert result.code == 137, result
    assert "scheduler failed first: killed by signal 9" in result.err
    assert launcher.left() == []


@pytest.mark.parametrize("with_scheduler", [False, True])
def test_whom_the_launcher_has_seen_dead_nobody_waits_for(launcher, with_scheduler):
    """By the clock a worker that is gone would have half a minute to come back, and five to another scheduler."""
    script = ROOT / "tests" / "scenarios" / "elastic" / "server_training.py"
    options = "-n 2 -s 1 --max-workers 2 --no-prefix --env BYTEPS_LIKE_FAILURE_TIMEOUT=600"
    process = launcher.start(f"{options} --env GOAL=2,1,2", sys.executable, str(script))
    while b'"step"' not in (line := process.stdout.readline()):
        assert line, process.stderr.read()
    if with_scheduler:
        assert kill_scheduler(launcher)
    os.kill(json.loads(line)["pid"], signal.SIGKILL)
    result = launcher.finish(process, 90)
    assert result.code == 0, result
    assert "died: the process has ended" in result.err and result.out.count('"sizes": [2, 1, 2]') == 2, result
