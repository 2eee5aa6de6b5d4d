"""A worker is killed in the middle of a step, the others go on, and another one joins: samples and weights."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from tests.multiprocess.elastic.elastic_job import ROOT, ElasticJob
from tests.multiprocess.real_world import Cluster

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
def test_a_death_and_a_joiner(tmp_path: Path, script: Path, servers: int) -> None:
    settings = {"elastic": True, "min_workers": 2}
    with closing(Cluster(3, servers, **settings)) as cluster, ElasticJob(cluster, script, tmp_path) as job:
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


def test_a_death_costs_the_others_no_step_where_servers_sum(tmp_path: Path) -> None:
    """The step in which one dies is finished by the others, and from the next commit on they are a smaller world."""
    script = ROOT / "tests" / "scenarios" / "elastic" / "server_training.py"
    with closing(Cluster(3, 1, elastic=True)) as cluster, ElasticJob(cluster, script, tmp_path) as job:
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


def test_the_example(tmp_path: Path) -> None:
    """A world of one, which another worker joins."""
    settings = {"elastic": True, "max_workers": 2}
    script = ROOT / "examples" / "elastic" / "digits.py"
    with closing(Cluster(1, 0, **settings)) as cluster, ElasticJob(cluster, script, tmp_path) as job:
        first = job.start(PYTHONUNBUFFERED="1")
        job.wait(lambda: "is rank 0 of 1" in first.output(), "the beginning")
        job.ended(first)
        assert "with 1 workers" in first.output()
        accuracy = float(first.output().split("accuracy ")[1].split()[0])
        assert accuracy > 0.9
