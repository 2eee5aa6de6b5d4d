"""A worker is killed in the middle of a step, the others go on, and another one joins: samples and weights."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from byteps_like.config import Config
from byteps_like.control.calls.client import query_status
from tests.multiprocess.elastic.elastic_job import ROOT, ElasticJob
from tests.multiprocess.real_world import Cluster, Processes

SCRIPT = ROOT / "tests" / "scenarios" / "elastic" / "horovod_training.py"
SAMPLES = 120


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """Horovod's, with the import line changed."""
    text = SCRIPT.read_text()
    assert text.count("import horovod.torch as hvd\n") == 1
    path = tmp_path / "training.py"
    path.write_text(text.replace("import horovod.torch as hvd\n", "import byteps_like.torch as hvd\n"))
    return path


@pytest.mark.parametrize("servers", [0, 1])
def test_a_death_and_a_joiner(tmp_path: Path, script: Path, servers: int, warm_python: list[str]) -> None:
    settings = {"elastic": True, "min_workers": 2}
    with (
        closing(Cluster(3, servers, **settings)) as cluster,
        ElasticJob(cluster, tmp_path, [*warm_python, str(script)]) as job,
    ):
        first, second = job.start(GOAL="2 3"), job.start(GOAL="2 3")
        victim = job.start(GOAL="2 3", VICTIM=str(tmp_path / "victim"))
        job.wait(lambda: any(event["size"] == 2 for event in first.events("pass")), "a pass of two")
        assert victim.process.wait() == -9
        joiner = job.start(GOAL="2 3")
        for worker in (first, second, joiner):
            job.ended(worker)
        survivors = sorted((first, second), key=lambda one: one.events("began")[-1]["rank"])
        assert [one.events("began")[-1]["rank"] for one in (*survivors, joiner)] == [0, 1, 2]
        for one in survivors:
            assert [event["size"] for event in one.events("began")] == [3, 2, 3]
            assert [event["size"] for event in one.events("reset")] == [2, 3]
            assert one.events("began")[1]["step"] == 3, "the last commit, in whose next step the other one died"
        ends = [one.events("end")[0] for one in (*survivors, joiner)]
        assert ends[0]["weights"] == ends[1]["weights"] == ends[2]["weights"]
        assert [end["sizes"] for end in ends] == [[3, 2, 3]] * 3
        assert len({one.events("began")[-1]["weights"] for one in (*survivors, joiner)}) == 1
        for event in survivors[0].events("pass"):
            _check_ledger(event["seen"])


def _check_ledger(seen: list[int]) -> None:
    """All samples, once each, but for those that fill up the end of a pass."""
    counts = Counter(seen)
    assert set(counts) == set(range(SAMPLES))
    assert sum(counts.values()) - SAMPLES < 3


@pytest.mark.parametrize("servers", [0, 1])
def test_a_death_costs_the_others_no_step(tmp_path: Path, servers: int, warm_python: list[str]) -> None:
    """The step in which one dies is finished by the others, by servers or among themselves, and from the next commit on
    they are a smaller world."""
    script = ROOT / "tests" / "scenarios" / "elastic" / "server_training.py"
    with (
        closing(Cluster(3, servers, elastic=True)) as cluster,
        ElasticJob(cluster, tmp_path, [*warm_python, str(script)]) as job,
    ):
        first, second, victim = job.start(GOAL="3 2"), job.start(GOAL="3 2"), job.start(GOAL="3 2", VICTIM="1")
        for worker in (first, second):
            job.ended(worker)
        assert victim.process.wait() == -9
        for one in (first, second):
            steps = [event["step"] for event in one.events("step")]
            assert steps == list(range(1, len(steps) + 1)), "a step was lost, or made twice"
            assert [event["size"] for event in one.events("began")] == [3, 2]
            assert one.events("began")[1]["step"] >= 4
        ends = [one.events("end")[0] for one in (first, second)]
        assert ends[0]["weights"] == ends[1]["weights"] and ends[0]["sizes"] == [3, 2]
        taken = [sample for one in (first, second, victim) for event in one.events("step") if event["epoch"] == 0
                 for sample in event["samples"]]  # fmt: skip
        assert set(taken) == set(range(SAMPLES))
        assert len(taken) - SAMPLES < 4 + 2, "more than a batch of the victim was handed out again"


@pytest.mark.parametrize("how", ["kill", "terminate"])
def test_a_server_that_goes_costs_no_step_and_another_one_comes_in_between_two(
    tmp_path: Path, how: str, warm_python: list[str]
) -> None:
    script = ROOT / "tests" / "scenarios" / "elastic" / "server_training.py"
    with Processes(2, 2, elastic=True) as cluster, ElasticJob(cluster, tmp_path, [*warm_python, str(script)]) as job:
        workers = [job.start(GOAL="2 2 2"), job.start(GOAL="2 2 2")]
        job.wait(lambda: len(workers[0].events("step")) > 5, "some steps")
        getattr(cluster.processes["server1"], how)()
        job.wait(lambda: len(workers[0].events("began")) == 2, "a world with one server")
        cluster.start("server1")
        for worker in workers:
            job.ended(worker)
        for one in workers:
            steps = [event["step"] for event in one.events("step")]
            assert steps == list(range(1, len(steps) + 1)), "a step was lost, or made twice"
            assert [event["size"] for event in one.events("began")] == [2, 2, 2]
        ends = [one.events("end")[0]["weights"] for one in workers]
        assert ends[0] == ends[1]


def test_too_few_give_up(tmp_path: Path, script: Path, warm_python: list[str]) -> None:
    settings = {"elastic": True, "min_workers": 2}
    with (
        closing(Cluster(2, 0, **settings)) as cluster,
        ElasticJob(cluster, tmp_path, [*warm_python, str(script)]) as job,
    ):
        patience = {"GOAL": "0", "BYTEPS_LIKE_JOIN_TIMEOUT": "20"}
        survivor = job.start(**patience)
        job.start(**patience, VICTIM=str(tmp_path / "victim"))
        job.wait(lambda: survivor.process.poll() is not None, "the end of the survivor")
        assert survivor.process.returncode == 1
        assert "TooFewWorkersError: min_workers=2, but only 1 came within 2" in survivor.output()


def test_a_spare_comes_in_when_there_is_room_and_ends_with_the_job(
    tmp_path: Path, script: Path, warm_python: list[str]
) -> None:
    settings = {"elastic": True, "max_workers": 2}
    with (
        closing(Cluster(2, 0, **settings)) as cluster,
        ElasticJob(cluster, tmp_path, [*warm_python, str(script)]) as job,
    ):
        first, victim = job.start(GOAL="2 2"), job.start(GOAL="2 2")
        job.wait(lambda: bool(first.events("began")), "the beginning")
        spares = [job.start(GOAL="2 2"), job.start(GOAL="2 2")]
        config = cluster.config(role="worker")
        job.wait(lambda: _waiting(config) == 2, "two spares that wait")
        victim.process.kill()
        job.ended(first)
        assert first.events("end")[0]["sizes"] == [2, 2], "a spare has taken the place at once"
        for spare in spares:
            job.wait(lambda spare=spare: spare.process.poll() is not None, "the end of a spare")
        codes = sorted(spare.process.returncode for spare in spares)
        assert codes == [0, 1], "\n".join(spare.output() for spare in spares)
        idle = next(spare for spare in spares if spare.process.returncode)
        assert "ShutdownError: job" in idle.output() and "has ended" in idle.output()


def _waiting(config: Config) -> int:
    return sum(member.state == "waiting" for member in query_status(config).members)


def test_the_example(tmp_path: Path, warm_python: list[str]) -> None:
    """A world of one, which another worker joins."""
    settings = {"elastic": True, "max_workers": 2}
    script = ROOT / "examples" / "elastic" / "digits.py"
    with (
        closing(Cluster(1, 0, **settings)) as cluster,
        ElasticJob(cluster, tmp_path, [*warm_python, str(script)]) as job,
    ):
        first = job.start(PYTHONUNBUFFERED="1")
        job.wait(lambda: "is rank 0 of 1" in first.output(), "the beginning")
        job.ended(first)
        assert "with 1 workers" in first.output()
        accuracy = float(first.output().split("accuracy ")[1].split()[0])
        assert accuracy > 0.9
