"""Servers of elastic jobs die or leave in the middle of a step: others take over, no sum is lost, or is another one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fault.elastic import elastic_bodies as bodies
from tests.multiprocess.real_world import Pool, Processes

RANKS = 3


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool(RANKS)
    yield made
    made.close()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("rounds", [[20], [20, 21], [10, 40]], ids=str)
def test_every_sum_is_that_of_all(pool: Pool, transport: str, rounds: list[int]) -> None:
    with Processes(RANKS, 3, transport=transport, elastic=True) as cluster:
        names = ["server", "server1", "server2"][: len(rounds)]
        deaths = {number: cluster.processes[name].pid for number, name in zip(rounds, names, strict=True)}
        found = pool.run(cluster, bodies.sum_without_servers, deaths)
    assert len(set(found)) == 1


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("rounds", [[20], [20, 21]], ids=str)
def test_servers_that_leave_cost_no_sum(pool: Pool, transport: str, rounds: list[int]) -> None:
    with Processes(RANKS, 3, transport=transport, elastic=True) as cluster:
        found = pool.run(cluster, bodies.sum_while_servers_leave, dict(zip(rounds, (2, 0), strict=False)))
        codes = [cluster.processes[name].poll() for name in ("server", "server1", "server2")]
    assert len(set(found)) == 1
    assert codes.count(0) >= len(rounds), codes


@pytest.mark.parametrize(
    ("compression", "transport"), [(None, "shm"), ("fp16", "tcp"), ("onebit", "shm"), ("topk", "tcp")]
)
def test_training_goes_on_with_the_same_weights(pool: Pool, compression: str | None, transport: str) -> None:
    with Processes(RANKS, 2, transport=transport, elastic=True) as cluster:
        found = pool.run(cluster, bodies.train_without_server, compression, cluster.processes["server1"].pid)
    assert len({one["weights"] for one in found}) == 1
    assert all(one["accuracy"] > 0.9 for one in found), found
