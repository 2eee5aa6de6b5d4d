"""Cuts that `run` makes and takes: all of a job is killed, and another one goes on; one worker dies while it writes."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from tests.multiprocess.elastic.elastic_job import ROOT, ElasticJob, ElasticWorker
from tests.multiprocess.real_world import Cluster

SCRIPT = ROOT / "tests" / "scenarios" / "elastic" / "cut_training.py"
SAMPLES = 240


def whole(directory: Path) -> list[str]:
    """The names of the cuts there."""
    return sorted(path.parent.name for path in directory.glob("cut-*/manifest.json"))


def test_a_job_that_is_killed_goes_on_as_another_one(tmp_path: Path, warm_python: list[str]) -> None:
    """Of two workers and two servers, where there were three and one: each sample counts once."""
    cuts = tmp_path / "cuts"
    environment = {"CUTS": str(cuts), "PASSES": "1"}
    (tmp_path / "first").mkdir()
    with (
        closing(Cluster(3, 1, elastic=True)) as cluster,
        ElasticJob(cluster, tmp_path / "first", [*warm_python, str(SCRIPT)]) as first,
    ):
        workers = [first.start(**environment, LAST="16") for _ in range(3)]
        first.wait(lambda: bool(whole(cuts)), "a cut")
        for worker in workers:
            worker.process.kill()
            worker.process.wait()
        steps = {event["step"]: event["weights"] for event in workers[0].events("step")}
        assert max(steps) < SAMPLES // (3 * 4), "killed before its end"
    (tmp_path / "second").mkdir()
    with (
        closing(Cluster(2, 2, elastic=True)) as cluster,
        ElasticJob(cluster, tmp_path / "second", [*warm_python, str(SCRIPT)]) as second,
    ):
        others = [second.start(**environment) for _ in range(2)]
        for worker in others:
            second.ended(worker)
    began = [worker.events("began")[0] for worker in others]
    step = began[0]["step"]
    assert step > 0
    for event in began:
        assert event["step"] == step and event["weights"] == steps[step]
    counts = _counts([one for one in workers], lambda event: event["step"] <= step) + _counts(others)
    assert set(counts) == set(range(SAMPLES)) and sum(counts.values()) - SAMPLES < 2


def _counts(workers: list[ElasticWorker], counts=lambda _: True) -> Counter[int]:
    return Counter(
        sample for one in workers for event in one.events("step") if counts(event) for sample in event["samples"]
    )


@pytest.mark.parametrize("rank", [0, 2])
def test_a_worker_that_dies_while_it_writes_leaves_no_cut(tmp_path: Path, rank: int, warm_python: list[str]) -> None:
    """Whether or not it would have made it one."""
    cuts = tmp_path / "cuts"
    environment = {"CUTS": str(cuts), "PASSES": "2"}
    with (
        closing(Cluster(3, 1, elastic=True)) as cluster,
        ElasticJob(cluster, tmp_path, [*warm_python, str(SCRIPT)]) as job,
    ):
        workers = [job.start(**environment, VICTIM=f"{rank} 2") for _ in range(3)]
        seen: set[str] = set()
        job.wait(lambda: seen.update(whole(cuts)) or max(seen, default="") >= "cut-00000004", "a later cut")
        victim = next(one for one in workers if one.process.poll() is not None)
        survivors = [one for one in workers if one is not victim]
        for worker in survivors:
            job.ended(worker)
        assert victim.process.returncode == -9
        assert "cut-00000002" not in seen | set(whole(cuts))
        assert not (cuts / "cut-00000002").exists(), "what was written of it goes"
        assert len(whole(cuts)) == 3
        (first,) = [one for one in survivors if one.events("began")[-1]["rank"] == 0]
        assert f"cut-00000002 is given up: rank {rank} has not written its part" in first.output()
        ends = [one.events("end")[0] for one in survivors]
        assert ends[0]["weights"] == ends[1]["weights"] and ends[0]["latest"].endswith(whole(cuts)[-1])
