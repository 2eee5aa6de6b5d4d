"""`byteps-like server drain` and `worker drain`, given in the middle of a training: no step is lost or made twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.multiprocess.elastic.elastic_job import ROOT, ElasticJob, ElasticWorker
from tests.multiprocess.elastic.test_elastic_run import events, run
from tests.multiprocess.real_world import Processes

SCRIPT = ROOT / "tests" / "scenarios" / "elastic" / "server_training.py"
SAMPLES = 120
LEFT = "left, as it was asked to"


def drain(cluster: Processes, who: str, rank: int, *options: str) -> subprocess.CompletedProcess[str]:
    """The command, to its end."""
    settings = {name: value for name, value in cluster.rank_settings(-1).items() if name in ("secret", "job")}
    clean = {name: value for name, value in os.environ.items() if not name.startswith("BYTEPS_LIKE_")}
    clean |= {f"BYTEPS_LIKE_{name.upper()}": str(value) for name, value in settings.items()}
    where = ["--scheduler", cluster.rank_settings(-1)["scheduler"], *options]
    command = [sys.executable, "-m", "byteps_like", who, "drain", str(rank), *where]
    return subprocess.run(
        command, env=clean | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=90, check=False
    )


def steps_of(worker: ElasticWorker) -> list[int]:
    """The numbers of all that it has made."""
    return [event["step"] for event in worker.events("step")]


def test_a_server_leaves(tmp_path: Path, warm_python: list[str]) -> None:
    with Processes(2, 2, elastic=True) as cluster, ElasticJob(cluster, tmp_path, [*warm_python, str(SCRIPT)]) as job:
        workers = [job.start(GOAL="2 2"), job.start(GOAL="2 2")]
        job.wait(lambda: len(workers[0].events("step")) > 5, "some steps")
        result = drain(cluster, "server", 1)
        assert result.returncode == 0, result
        assert "server 1 (host 127.0.0.1, pid " in result.stdout and "is to leave\n" in result.stdout
        assert "has left, " in result.stdout.splitlines()[-1]
        gone = [process for name, process in cluster.processes.items() if f"pid {process.pid})" in result.stdout]
        assert [process.wait(timeout=10) for process in gone] == [0]
        for worker in workers:
            job.ended(worker)
            assert steps_of(worker) == list(range(1, len(steps_of(worker)) + 1)), "a step was lost, or made twice"
            assert [event["size"] for event in worker.events("began")] == [2, 2]
        ends = [worker.events("end")[0]["weights"] for worker in workers]
        assert ends[0] == ends[1]


@pytest.mark.parametrize("how", ["drain", "SIGTERM"])
def test_a_worker_leaves_and_no_sample_is_lost_or_repeated(tmp_path: Path, how: str, warm_python: list[str]) -> None:
    with Processes(3, 1, elastic=True) as cluster, ElasticJob(cluster, tmp_path, [*warm_python, str(SCRIPT)]) as job:
        workers = [job.start(GOAL="3 2") for _ in range(3)]
        job.wait(lambda: len(workers[0].events("step")) > 2, "some steps")
        if how == "drain":
            result = drain(cluster, "worker", 0)
            assert result.returncode == 0, result
            assert "is to leave at its next commit()\n" in result.stdout
        else:
            next(worker for worker in workers if worker.events("began")[0]["rank"] == 0).process.terminate()
        for worker in workers:
            job.wait(lambda worker=worker: worker.process.poll() is not None, "the end of a worker")
        assert [worker.process.returncode for worker in workers] == [0, 0, 0]
        (gone,) = (worker for worker in workers if not worker.events("end"))
        stayed = [worker for worker in workers if worker is not gone]
        assert gone.events("began")[0]["rank"] == 0
        for worker in stayed:
            assert steps_of(worker) == list(range(1, len(steps_of(worker)) + 1)), "a step was lost, or made twice"
            assert [event["size"] for event in worker.events("began")] == [3, 2]
            assert worker.events("began")[1]["step"] == steps_of(gone)[-1]
        assert len({worker.events("end")[0]["weights"] for worker in stayed}) == 1
        taken = Counter(sample for worker in workers for event in worker.events("step") if event["epoch"] == 0
                        for sample in event["samples"])  # fmt: skip
        assert set(taken) == set(range(SAMPLES)) and taken.total() - SAMPLES < 2


def test_who_can_not_leave_is_said_in_a_line(tmp_path: Path, warm_python: list[str]) -> None:
    with (
        Processes(2, 1, elastic=True, min_workers=2) as cluster,
        ElasticJob(cluster, tmp_path, [*warm_python, str(SCRIPT)]) as job,
    ):
        job.wait(lambda: drain(cluster, "server", 0, "--timeout", "0.1").returncode == 2, "a scheduler")
        result = drain(cluster, "worker", 1, "--timeout", "0.1")
        assert result.returncode == 2 and "waited for a world to form that it can leave, in vain" in result.stderr
        workers = [job.start(GOAL="0"), job.start(GOAL="0")]
        job.wait(lambda: len(workers[0].events("step")) > 0, "a step")
        for who, rank, text in [
            ("server", 0, "is the only server: start another one first"),
            ("server", 4, "there is no server 4: world 1 has server 0"),
            ("worker", 1, "min_workers=2: without worker 1"),
        ]:
            result = drain(cluster, who, rank)
            assert result.returncode == 2 and text in result.stderr, result
            assert len(result.stderr.splitlines()) == 1
        cluster.processes["scheduler"].kill()
        result = drain(cluster, "server", 0)
        assert result.returncode == 1 and "no scheduler at" in result.stderr, result


def test_who_can_not_leave_ends_at_once(tmp_path: Path, warm_python: list[str]) -> None:
    """As SIGTERM ends any process."""
    with (
        Processes(2, 1, elastic=True, min_workers=2) as cluster,
        ElasticJob(cluster, tmp_path, [*warm_python, str(SCRIPT)]) as job,
    ):
        workers = [job.start(GOAL="0"), job.start(GOAL="0")]
        job.wait(lambda: len(workers[0].events("step")) > 0, "a step")
        workers[1].process.terminate()
        job.wait(lambda: workers[1].process.poll() is not None, "the end of a worker")
        assert workers[1].process.returncode == -signal.SIGTERM
        assert "can't leave in order: min_workers=2: without worker " in workers[1].output()


@pytest.mark.parametrize(
    ("command", "goal", "sizes"),
    [
        ("server drain 1", "2 2", [2, 2]),
        ("server drain 1 --replace", "2 2 2", [2, 2, 2]),
        ("worker drain 1", "2 1", [2, 1]),
        ("worker drain 0 --replace", "2 1 2", [2, 1, 2]),
    ],
)
def test_its_launcher_takes_that_for_no_failure(
    command: str, goal: str, sizes: list[int], warm_python: list[str]
) -> None:
    options = ["-n", "2", "-s", "2", "--max-workers", "2", "--min-workers", "1", "--max-deaths", "1"]
    result = run(options, *warm_python, str(SCRIPT), GOAL=goal, DRAIN=command)
    assert result.returncode == 0, result
    assert all(end["sizes"] == sizes for end in events(result, "end")), result.stdout
    assert len(events(result, "end")) == sizes[-1]
    then = "; another one takes its place\n" if "--replace" in command else "\n"
    assert f"byteps-like: {command[:8].replace(' d', ' ')}".rstrip() in result.stderr and LEFT + then in result.stderr
    assert "died" not in result.stderr and "failed" not in result.stderr, result.stderr
