"""`byteps-like run` of an elastic job: workers that die are replaced, here and on hosts that a script finds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.multiprocess.elastic.elastic_job import ROOT

SCRIPT = ROOT / "tests" / "scenarios" / "elastic" / "horovod_training.py"
DEADLINE = 120.0


def run(options: list[str], *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A job to its end."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("BYTEPS_LIKE_", "OMP_"))}
    return subprocess.run(
        [sys.executable, "-m", "byteps_like", "run", "--no-prefix", *options, "--", *command],
        env=clean | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )


def events(result: subprocess.CompletedProcess[str], kind: str) -> list[dict[str, Any]]:
    """What its workers have said of this kind."""
    found = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    return [event for event in found if event["event"] == kind]


def test_a_worker_that_dies_is_replaced(tmp_path: Path) -> None:
    """Horovod's script is run as it is; so slowly do processes start that the others go on alone in between."""
    options = ["-n", "2", "-s", "1", "--min-workers", "1", "--max-workers", "2"]
    command = [sys.executable, "-m", "byteps_like.horovod", str(SCRIPT)]
    result = run(options, *command, GOAL="1 2", VICTIM=str(tmp_path / "victim"))
    assert result.returncode == 0, result
    assert [end["sizes"] for end in events(result, "end")] == [[2, 1, 2]] * 2, result
    assert len({end["weights"] for end in events(result, "end")}) == 1
    assert "died (killed by signal 9 (SIGKILL)); another one takes its place" in result.stderr
    assert "the others finished" in result.stderr


def test_workers_are_started_on_hosts_that_a_script_finds(tmp_path: Path, warm_python: list[str]) -> None:
    """What stands for ssh runs the command here; the hosts are two, and one of them comes later."""
    hosts, ssh = tmp_path / "hosts.sh", tmp_path / "ssh.sh"
    hosts.write_text(f"#!/bin/sh\necho node1:1\ntest -e {tmp_path}/more && echo node2:1\nexit 0\n")
    ssh.write_text('#!/bin/sh\nhost=$1; shift\nHOST_IS=$host exec sh -c "$*"\n')
    script = tmp_path / "training.py"
    told = f"open('{tmp_path}/more', 'w'); say(event='began', host=os.environ['HOST_IS']"
    text = SCRIPT.read_text().replace("import horovod.torch as hvd", "import byteps_like.torch as hvd")
    assert text.count('say(event="began"') == 1
    script.write_text(text.replace('say(event="began"', told))
    for path in (hosts, ssh):
        path.chmod(0o755)
    options = ["-n", "1", "-s", "0", "--max-workers", "2", "--spares", "1", "--discover", str(hosts)]
    options += ["--start", f"{ssh} {{host}} {{command}}"]
    result = run(options, *warm_python, str(script), GOAL="1 2", BYTEPS_LIKE_HOST="127.0.0.1")
    assert result.returncode == 0, result
    assert {event["host"] for event in events(result, "began")} == {"node1", "node2"}, result
    assert [end["sizes"] for end in events(result, "end")] == [[1, 2]] * 2, result


@pytest.mark.parametrize("workers", [1, 2])
def test_worlds_that_were_left_keep_nothing_open(warm_python: list[str], workers: int) -> None:
    script, count = SCRIPT.with_name("world_after_world.py"), str(workers)
    result = run(["-n", count, "-s", "1", "--max-workers", count], *warm_python, str(script))
    assert result.returncode == 0, result
    told = events(result, "world")
    for pid in {one["pid"] for one in told}:
        first, *_, last = [one for one in told if one["pid"] == pid][1:]  # in the second is what is left of the first
        assert last["fd"] <= first["fd"] + 6 and last["task"] <= first["task"] + 2, result.stdout


def test_the_gpt_trains(tmp_path: Path, warm_python: list[str]) -> None:
    """The example, shortened."""
    script, out = ROOT / "examples" / "elastic" / "gpt.py", tmp_path / "result.json"
    short = ["--steps", "6", "--batch", "2", "--width", "16", "--window", "16", "--log", "3", "--json", str(out)]
    result = run(["-n", "2", "-s", "1", "--max-workers", "2"], *warm_python, str(script), *short)
    assert result.returncode == 0, result
    found = json.loads(out.read_text())
    assert (found["steps"], found["samples"]) == (6, 24) and 3.5 < found["loss"] < 6, found
    assert result.stdout.count("step 3: loss") == result.stdout.count("step 6: loss") == 2


def test_a_script_that_fails_everywhere_ends_the_job() -> None:
    result = run(["-n", "2", "-s", "0", "--max-workers", "2"], sys.executable, "-c", "import sys; sys.exit(3)")
    assert result.returncode == 3, result
    assert result.stderr.count("rests for 600 s") == 2 and "failed first: exit code 3" in result.stderr


FAILS = """
import time
import byteps_like.torch as bps
bps.init()
bps.barrier()  # who takes a place joins with that
time.sleep(2 * bps.rank())
raise ValueError("a mistake of the script")
"""


def test_who_would_take_a_place_when_the_job_has_ended_is_too_late(tmp_path: Path, warm_python: list[str]) -> None:
    """Both workers fail by themselves, so that no world is left to join."""
    script = tmp_path / "fails.py"
    script.write_text(FAILS)
    result = run(["-n", "2", "-s", "1", "--min-workers", "1", "--max-workers", "2"], *warm_python, str(script))
    assert result.returncode == 1, result
    assert "came too late: the job has ended" in result.stderr and "rests for" not in result.stderr, result.stderr
    failed_first = result.stderr[result.stderr.index(" failed first: ") :]
    assert "ValueError: a mistake of the script" in failed_first.partition("after it")[0]


LEAVES_A_CHILD = """
import pathlib, subprocess, sys
before = pathlib.Path(sys.argv[1])
if not before.exists():
    before.touch()
    subprocess.Popen(["sleep", "60"])
    sys.exit(3)
print("in its place")
"""


def test_what_a_dead_worker_has_started_keeps_nobody_from_its_place(tmp_path: Path) -> None:
    """It holds the streams of the dead one."""
    command = [sys.executable, "-c", LEAVES_A_CHILD, str(tmp_path / "before")]
    result = run(["-n", "1", "-s", "0", "--max-workers", "1"], *command)
    assert result.returncode == 0 and result.stdout == "in its place\n", result


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--min-workers", "3", "--max-workers", "2"], "3 is more than --max-workers 2"),
        (["-n", "3", "--max-workers", "2"], "3 is more than --max-workers 2"),
        (["--start", "ssh {host} {command}"], "it is for the hosts that --discover finds"),
        (["--discover", "/no/such/script"], "--discover /no/such/script: No such file"),
    ],
)
def test_options_that_contradict_each_other(options: list[str], message: str) -> None:
    result = run(options, "true")
    assert result.returncode == 2 and message in result.stderr, result
