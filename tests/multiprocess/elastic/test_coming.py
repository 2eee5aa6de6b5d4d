"""A process that comes to an elastic job while its world runs is no member before its first operation, or `run`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from byteps_like.config import Config
from byteps_like.control.calls.client import query_status
from tests.multiprocess.elastic.elastic_job import ROOT, ElasticJob, ElasticWorker
from tests.multiprocess.real_world import Cluster

SCRIPT = ROOT / "tests" / "scenarios" / "elastic" / "coming.py"


class Pair:
    """A job of one, to which another process comes."""

    def __init__(self, job: ElasticJob, config: Config, folder: Path) -> None:
        self.job, self.config, self._folder = job, config, folder
        self.first = job.start(HOW="first")
        job.wait(lambda: bool(self.first.events("made")), "a world of one")

    def come(self, how: str) -> ElasticWorker:
        go = self._folder / f"go {len(self.job.workers)}"
        second = self.job.start(HOW=how, GO=str(go))
        self.job.wait(lambda: bool(second.events("made")), "another one")
        assert [one.state for one in query_status(self.config).members] == ["running"], "it is no member yet"
        assert second.events("came")[0]["place"] == second.events("made")[0]["place"] == [1, 2, 1, 2]
        assert second.events("made")[0]["samples"] == 6
        go.touch()
        return second


@pytest.fixture
def pair(tmp_path: Path, warm_python: list[str]) -> Iterator[Pair]:
    with (
        closing(Cluster(1, 0, elastic=True, max_workers=2)) as cluster,
        ElasticJob(cluster, tmp_path, [*warm_python, str(SCRIPT)]) as job,
    ):
        yield Pair(job, cluster.config(role="worker"), tmp_path)


@pytest.mark.parametrize("how", ["operation", "run"])
def test_it_joins(pair: Pair, how: str) -> None:
    second = pair.come(how)
    for worker in (pair.first, second):
        pair.job.ended(worker)
    assert pair.first.events("end")[0] == {"event": "end", "place": [0, 2, 0, 2], "samples": 6}
    assert second.events("end")[0]["place"] == [1, 2, 1, 2]
    if how == "operation":
        assert second.events("joined")[0]["place"] == [1, 2, 1, 2]


@pytest.mark.parametrize("how", ["shutdown", "suspend"])
def test_it_goes_again_without_a_trace(pair: Pair, how: str) -> None:
    second = pair.come(how)
    pair.job.ended(second)
    if how == "suspend":
        assert second.events("suspended")[0]["place"] == [1, 2, 1, 2]
    assert [one.state for one in query_status(pair.config).members] == ["running"]
    assert query_status(pair.config).epoch == 1
    third = pair.come("run")
    for worker in (pair.first, third):
        pair.job.ended(worker)
