"""What servers keep goes on with an elastic job: workers and servers join, die and leave."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from byteps_like.config import Config
from byteps_like.server.process import EmbeddedServer, ServerStore, native_store
from tests.multiprocess.elastic.elastic_job import ROOT, ElasticJob, ElasticWorker
from tests.multiprocess.elastic.test_draining import drain
from tests.multiprocess.real_world import Cluster, Processes

SCRIPT = ROOT / "tests" / "scenarios" / "elastic" / "kept_training.py"


def adam(steps: int) -> dict[str, list[float]]:
    """What one process makes of the same steps."""
    torch.manual_seed(0)
    model = torch.nn.Linear(300, 40)
    gradients = [torch.randn_like(one) for one in model.parameters()]
    plain = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        for one, gradient in zip(model.parameters(), gradients, strict=True):
            one.grad = gradient.clone()
        plain.step()
    return {name: one.detach().flatten()[:50].tolist() for name, one in model.named_parameters()}


def check(ended: Sequence[ElasticWorker], every: Sequence[ElasticWorker], sizes: Sequence[int]) -> None:
    """No step and no push is lost or made twice, and the weights are those of one process."""
    pushes = sum(len(worker.events("step")) for worker in every)
    for worker in ended:
        (end,) = worker.events("end")
        assert end["sizes"] == list(sizes)
        assert end["counts"] == [pushes]
        assert end["version"] == pushes
        _check_weights(end, pushes)


def check_from_cut(ended: Sequence[ElasticWorker], sizes: Sequence[int]) -> None:
    """The second world has gone on from a cut of the first one, and made five more steps."""
    step = ended[0].events("began")[1]["step"]
    assert step > 0, "that of a cut"
    pushes = sizes[0] * step + sizes[1] * 5
    for worker in ended:
        (end,) = worker.events("end")
        assert (end["step"], end["counts"], end["version"]) == (step + 5, [pushes], pushes)
        _check_weights(end, pushes)


def _check_weights(end: dict[str, Any], pushes: int) -> None:
    expected = adam(pushes)
    for name, weights in end["weights"].items():
        assert weights == pytest.approx(expected[name], rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("servers", [1, 2])
def test_a_joiner_and_a_death(tmp_path: Path, servers: int, warm_python: list[str]) -> None:
    with (
        closing(Cluster(2, servers, elastic=True, max_workers=3)) as cluster,
        ElasticJob(cluster, tmp_path, [*warm_python, str(SCRIPT)]) as job,
    ):
        stay = [job.start(GOAL="2 3 2"), job.start(GOAL="2 3 2")]
        job.wait(lambda: len(stay[0].events("step")) > 2, "some steps")
        victim = job.start(GOAL="2 3 2", VICTIM="3")
        for worker in stay:
            job.ended(worker)
        assert victim.process.wait() == -9
        check(stay, [*stay, victim], [2, 3, 2])


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_server_and_a_worker_leave(tmp_path: Path, warm_python: list[str], replicas: int) -> None:
    """What the one has is carried by those who stay, and the other carries nothing."""
    with Processes(3, 2, elastic=True) as cluster, ElasticJob(cluster, tmp_path, [*warm_python, str(SCRIPT)]) as job:
        workers = [job.start(GOAL="3 3 2", REPLICAS=str(replicas)) for _ in range(3)]
        job.wait(lambda: len(workers[0].events("step")) > 2, "some steps")
        assert drain(cluster, "server", 1).returncode == 0
        job.wait(lambda: workers[0].events("began")[-1]["sizes"] == [3, 3], "a world with one server")
        assert drain(cluster, "worker", 1).returncode == 0
        stay = [one for one in workers if one.events("began")[-1]["rank"] != 1]
        for worker in stay:
            job.ended(worker)
        check(stay, workers, [3, 3, 2])


def test_after_a_failure_all_go_on_from_a_cut(tmp_path: Path, warm_python: list[str]) -> None:
    """With `on_loss="raise"` the world ends with a rank, and values with it."""
    cuts = {"CUTS": str(tmp_path / "cuts"), "ON_LOSS": "raise"}
    with (
        closing(Cluster(3, 1, elastic=True)) as cluster,
        ElasticJob(cluster, tmp_path, [*warm_python, str(SCRIPT)]) as job,
    ):
        stay = [job.start(GOAL="3 2", **cuts) for _ in range(2)]
        victim = job.start(GOAL="3 2", VICTIM="3", **cuts)
        for worker in stay:
            job.ended(worker)
        assert victim.process.wait() == -9
        check_from_cut(stay, [3, 2])


def test_nothing_is_lost_with_a_worker_that_dies_between_two_worlds(tmp_path: Path, warm_python: list[str]) -> None:
    terms = {"GOAL": "2 2"}
    with (
        closing(Cluster(2, 1, elastic=True, max_workers=3)) as cluster,
        ElasticJob(cluster, tmp_path, [*warm_python, str(SCRIPT)]) as job,
    ):
        both = [job.start(**terms, BETWEEN="2"), job.start(**terms, BETWEEN="2")]
        job.wait(lambda: len(both[0].events("step")) > 2, "some steps")
        joiner = job.start(**terms)
        victim, stays = sorted(both, key=lambda worker: worker.events("began")[0]["rank"])
        for worker in (stays, joiner):
            job.ended(worker)
        assert victim.process.wait() == -9
        check([stays, joiner], [*both, joiner], [2, 2])


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_server_dies_between_two_worlds(tmp_path: Path, warm_python: list[str], replicas: int) -> None:
    """Another one that has a copy gives that; else all go on from a cut."""
    with Processes(2, 2, elastic=True, max_workers=3) as cluster:
        terms = {"GOAL": "2 3", "CUTS": str(tmp_path / "cuts"), "REPLICAS": str(replicas)}
        terms |= {"BETWEEN": "2", "KILL": str(cluster.processes["server"].pid)}
        with ElasticJob(cluster, tmp_path, [*warm_python, str(SCRIPT)]) as job:
            workers = [job.start(**terms), job.start(**terms)]
            job.wait(lambda: any((tmp_path / "cuts").glob("cut-*/manifest.json")), "a cut")
            workers.append(job.start(**terms))
            for worker in workers:
                job.ended(worker)
            if replicas == 2:
                check(workers, workers, [2, 3])
            else:
                check_from_cut(workers, [2, 3])
                assert "aren't whole any more: the server at " in workers[0].output()


def test_nothing_is_lost_where_the_next_world_ends_before_all_is_taken_over(
    tmp_path: Path, warm_python: list[str]
) -> None:
    """In the one after it there are a rank that knows where all is, and one that has come meanwhile."""
    terms = {"GOAL": "2 2"}
    with (
        closing(Cluster(2, 2, elastic=True, max_workers=3)) as cluster,
        ElasticJob(cluster, tmp_path, [*warm_python, str(SCRIPT)]) as job,
    ):
        both = [job.start(**terms, INTO="3"), job.start(**terms, INTO="3")]
        job.wait(lambda: len(both[0].events("step")) > 2, "some steps")
        joiner = job.start(**terms)
        victim, stays = sorted(both, key=lambda worker: worker.events("began")[0]["rank"])
        for worker in (stays, joiner):
            job.ended(worker)
        assert victim.process.wait() == -9
        check([stays, joiner], [*both, joiner], [2, 2])


def test_a_server_leaves_only_when_all_that_it_has_set_aside_is_taken_over(
    tmp_path: Path, warm_python: list[str]
) -> None:
    """It is asked to in the moment before that, and nobody has copies."""
    terms = {"GOAL": "2 3 3", "REPLICAS": "1", "DRAINS": "3"}
    with (
        Processes(2, 2, elastic=True, max_workers=3) as cluster,
        ElasticJob(cluster, tmp_path, [*warm_python, str(SCRIPT)]) as job,
    ):
        workers = [job.start(**terms), job.start(**terms)]
        job.wait(lambda: len(workers[0].events("step")) > 2, "some steps")
        workers.append(job.start(**terms))
        for worker in workers:
            job.ended(worker)
        (asked,) = [event for worker in workers for event in worker.events("drain")]
        assert asked["state"] == "asked"
        check(workers, workers, [2, 3, 3])


def test_servers_join(tmp_path: Path, warm_python: list[str]) -> None:
    """Values stay with the servers that there are, but for those of which the new one is to have its share. Nothing of
    them goes through the workers."""
    stores: list[ServerStore] = []

    def store(config: Config, *others: Any) -> ServerStore:
        stores.append(native_store(config, *others))
        return stores[-1]

    with (
        closing(Cluster(2, 1, start=False, elastic=True)) as cluster,
        ElasticJob(cluster, tmp_path, [*warm_python, str(SCRIPT)]) as job,
    ):
        workers = [job.start(GOAL="2 2 2", ELEMENTS="200000"), job.start(GOAL="2 2 2", ELEMENTS="200000")]
        for number in range(3):
            cluster.servers.append(EmbeddedServer(cluster.config(role="server", shards=2), store))
            cluster.servers[-1].start()
            job.wait(lambda number=number: len(workers[0].events("began")) == number + 1, "another world")
            job.wait(lambda number=number: len(workers[0].events("step")) > 2 * number, "a step")
        for worker in workers:
            job.ended(worker)
            for world in worker.events("began")[1:]:
                assert world["figures"]["payload_sent"] < 16 << 10, "of 1.7 MB that servers keep"
        check(workers, workers, [2, 2, 2])
        first, second, third = (one.stats()["moved"] for one in stores)
        whole = 8 * 200_000 + 12 * 12_040 + 500 * 32
        assert first < whole / 100, "what it had was here"
        assert whole / 4 < second < 1.1 * whole / 2
        assert whole / 6 < third < 1.1 * whole / 3


def test_without_a_cut_it_is_said_what_is_lost(tmp_path: Path, warm_python: list[str]) -> None:
    with (
        closing(Cluster(3, 1, elastic=True)) as cluster,
        ElasticJob(cluster, tmp_path, [*warm_python, str(SCRIPT)]) as job,
    ):
        stay = [job.start(GOAL="3 2", ON_LOSS="raise") for _ in range(2)]
        job.start(GOAL="3 2", VICTIM="3", ON_LOSS="raise")
        for worker in stay:
            job.wait(lambda worker=worker: worker.process.poll() is not None, "its end")
            assert worker.process.returncode == 1
            text = "the common values of 'counts', 'optimizer', 'rows', 'table' went with the world that has ended"
            assert text in worker.output() and "died" in worker.output() and "save_to=" in worker.output()
