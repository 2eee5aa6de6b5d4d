"""What codecs have left out of gradients stays each worker's own when an elastic job's world changes."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.multiprocess.elastic.elastic_job import ROOT, ElasticJob
from tests.multiprocess.real_world import Cluster

SCRIPT = ROOT / "tests" / "scenarios" / "elastic" / "encoded_training.py"


@pytest.mark.parametrize("servers", [0, 1])
def test_a_joiner_costs_nobody_a_residual(tmp_path: Path, servers: int, warm_python: list[str]) -> None:
    with (
        closing(Cluster(2, servers, elastic=True, max_workers=3)) as cluster,
        ElasticJob(cluster, tmp_path, [*warm_python, str(SCRIPT)]) as job,
    ):
        stay = [job.start(OWN="0", GOAL="2 3"), job.start(OWN="1", GOAL="2 3")]
        job.wait(lambda: len(stay[0].events("step")) > 2, "some steps")
        joiner = job.start(OWN="2", GOAL="2 3")
        for worker in (*stay, joiner):
            job.ended(worker)
    left = [next(one for one in reversed(worker.events("step")) if one["sizes"] == [2])["residual"] for worker in stay]
    assert left[0] != left[1] and any(left[0])
    assert [worker.events("began")[1]["residual"] for worker in stay] == left
    assert not any(joiner.events("began")[0]["residual"])
