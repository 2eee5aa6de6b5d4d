"""`byteps-like run` with real scheduler, servers and workers; `byteps-like status` looks at them meanwhile."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("byteps_like._core")

from launcher import ROOT, wait_until

SUMS = """
import os, sys, time
import numpy as np
from byteps_like.config import Config
from byteps_like.dtypes import DType, Op
from byteps_like.worker.api import TensorSpec
from byteps_like.worker.session import connect

worker = connect(Config.from_env())
(declared,) = worker.declare([TensorSpec("gradient", DType.FLOAT32, (100_000,))])
stop = os.path.join(os.path.dirname(os.environ["BYTEPS_LIKE_SECRET_FILE"]), "stop")
going = np.ones(100_000, np.float32)
while going[0] > 0:
    going[:] = not os.path.exists(stop)
    worker.push_pull(declared, going.ctypes.data, Op.PRODUCT).wait(20)
    print("step", flush=True) if worker.rank == 0 else None
    time.sleep(0.02)
print("done", worker.rank, worker.size, flush=True)
worker.close()
"""


def status_of(launcher, job):
    """The scheduler's answer; its address is in the environment of the job's processes."""
    variables = [Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") for pid in launcher.left()]
    found = dict(line.split(b"=", 1) for line in variables[-1] if line.startswith(b"BYTEPS_LIKE_S"))
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "BYTEPS_LIKE_JOB": job}
    environment |= {k: found[k.encode()].decode() for k in ("BYTEPS_LIKE_SCHEDULER", "BYTEPS_LIKE_SECRET_FILE")}
    command = [sys.executable, "-m", "byteps_like", "status", "--once", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def start_summing(launcher):
    process = launcher.start("-n 2 -s 2 --shards 1 --job whole", sys.executable, "-c", SUMS)
    assert process.stdout.readline().endswith(b"step\n")
    return process


def test_a_whole_job_sums_is_seen_by_status_and_ends_well(launcher):
    process = start_summing(launcher)
    wait_until(lambda: status_of(launcher, "whole")["members"][0]["stats"].get("steps", 0) > 0)
    seen = status_of(launcher, "whole")
    assert (seen["state"], seen["world_size"], seen["num_servers"], seen["epoch"]) == ("running", 2, 2, 1)
    members = [(m["member"]["role"], m["member"]["rank"], m["state"]) for m in seen["members"]]
    assert sorted(members) == [(role, rank, "running") for role in ("server", "worker") for rank in (0, 1)]
    assert {m["stats"].get("links_shm") for m in seen["members"] if m["member"]["role"] == "worker"} == {2.0}
    (launcher.files()[0] / "stop").touch()
    result = launcher.finish(process)
    assert result.code == 0, result
    assert {"done 0 2", "done 1 2"} <= {line.partition("│ ")[2] for line in result.out.splitlines()}
    assert launcher.left() == []


def test_a_server_that_is_killed_is_named_first_and_its_consequences_after_it(launcher):
    process = start_summing(launcher)
    servers = [m["member"] for m in status_of(launcher, "whole")["members"] if m["member"]["role"] == "server"]
    os.kill(next(member["pid"] for member in servers if member["rank"] == 1), signal.SIGKILL)
    result = launcher.finish(process)
    assert result.code == 137, result
    report = result.err[result.err.index("\nserver 1 failed first: killed by signal 9") :]
    assert sorted(line[10:18] for line in report.splitlines() if "PeerLostError: " in line) == ["worker 0", "worker 1"]
    assert launcher.left() == []


def said_by(process, opening):
    """The command on the line that begins so."""
    return next(line for line in process.stderr if line.startswith(opening)).removeprefix(opening).decode().strip()


def outcome_of(command, folder):
    """What a command prints that was copied into a fresh shell."""
    binaries = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {"PATH": binaries, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["sh", "-c", command], env=environment, cwd=folder, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_says_how_to_attach_and_a_log_holds_no_progress_line(launcher, tmp_path):
    process = start_summing(launcher)
    status = outcome_of(said_by(process, b"byteps-like: to monitor the job: ") + " --once", tmp_path)
    assert "worker 1" in status and "running" in status
    assert all(len(line) <= 80 for line in status.splitlines())
    recorded = outcome_of(said_by(process, b"byteps-like: to record its steps: "), tmp_path)
    assert recorded == f"4 members record 10 steps into {tmp_path / 'trace'}\n"
    time.sleep(3)
    (launcher.files()[0] / "stop").touch()
    result = launcher.finish(process)
    assert result.code == 0, result
    assert "byteps-like · " not in result.err


KEEPS = """
import os, signal
import numpy as np
from byteps_like.config import Config
from byteps_like.store import Store
from byteps_like.worker.session import connect

worker = connect(Config.from_env())
store = Store("s", {"w": np.zeros(3, np.int64)}, consistency="asp", combine="sum", on_loss="finish", worker=worker)
own = np.eye(3, dtype=np.int64)[worker.rank]
for step in range(40):
    if worker.rank in (VICTIMS) and step == 20:
        os.kill(os.getpid(), signal.SIGKILL)
    store.push("w", own).wait(20)
store.finish()
out = np.zeros(3, np.int64)
store.pull("w", out).wait(20)
print("counted", *out, flush=True)
worker.close()
"""


def test_the_others_finish_while_enough_workers_are_left(launcher):
    script = KEEPS.replace("VICTIMS", "1,")
    result = launcher.run("-n 3 -s 1 --min-workers 2", sys.executable, "-c", script)
    assert result.code == 0, result
    assert [line.partition("│ ")[2] for line in result.out.splitlines()].count("counted 40 20 40") == 2
    assert "worker 1 failed (killed by signal 9 (SIGKILL)" in result.err and "the others finished" in result.err
    assert launcher.left() == []


@pytest.mark.parametrize(("options", "victims"), [("", "1,"), ("--min-workers 2", "1, 2")])
def test_a_failure_too_many_ends_the_job(launcher, options, victims):
    script = KEEPS.replace("VICTIMS", victims).replace("range(40)", "range(10**6)")
    result = launcher.run(f"-n 3 -s 1 {options}", sys.executable, "-c", script)
    assert result.code == 137, result
    assert "failed first: killed by signal 9" in result.err
    assert launcher.left() == []


def test_more_workers_must_not_be_left_than_there_are(launcher):
    result = launcher.run("-n 2 --min-workers 3", sys.executable, "-c", "")
    assert result.code == 2 and "3 of 2 workers" in result.err
