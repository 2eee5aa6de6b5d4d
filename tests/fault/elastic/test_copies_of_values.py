"""Servers of elastic jobs die or leave that keep values: others go on with their copies, and no contribution is lost,
or counted twice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fault.elastic import kept_bodies as bodies
from tests.multiprocess.real_world import Pool, Processes

RANKS, ROUNDS, KINDS = 3, 60, 4


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool(RANKS)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("policy", "transport", "rounds"),
    [("asp", "shm", [20]), ("bsp", "tcp", [20]), ("ssp:s=3", "shm", [10, 40]), ("bsp", "shm", [10, 40])],
)
def test_every_contribution_counts_once(pool: Pool, policy: str, transport: str, rounds: list[int]) -> None:
    with Processes(RANKS, 3, transport=transport, elastic=True) as cluster:
        names = ["server", "server1"][: len(rounds)]
        deaths = {number: cluster.processes[name].pid for number, name in zip(rounds, names, strict=True)}
        found = pool.run(cluster, bodies.count_without_servers, policy, deaths, cluster.rank_settings(0))
    assert [one["counted"] for one in found] == [ROUNDS * KINDS] * RANKS
    assert [one["sums"] for one in found] == [[ROUNDS * sum(1000**rank for rank in range(RANKS))]] * RANKS


@pytest.mark.parametrize(
    ("policy", "transport", "leaves"),
    [("asp", "shm", {20: 0}), ("bsp", "tcp", {10: 2, 40: 1}), ("ssp:s=3", "shm", {10: 1, 40: 0})],
)
def test_who_leaves_hands_over_what_nobody_else_has(
    pool: Pool, policy: str, transport: str, leaves: dict[int, int]
) -> None:
    with Processes(RANKS, 3, transport=transport, elastic=True) as cluster:
        found = pool.run(cluster, bodies.count_without_servers, policy, leaves, cluster.rank_settings(0), "drain")
    assert [one["counted"] for one in found] == [ROUNDS * KINDS] * RANKS
    assert [one["sums"] for one in found] == [[ROUNDS * sum(1000**rank for rank in range(RANKS))]] * RANKS


def test_servers_that_are_terminated_hand_over_one_after_the_other(pool: Pool) -> None:
    with Processes(RANKS, 3, elastic=True) as cluster:
        terminated = [cluster.processes[name] for name in ("server", "server1")]
        pids = {20: [process.pid for process in terminated]}
        found = pool.run(cluster, bodies.count_without_servers, "ssp:s=3", pids, cluster.rank_settings(0), "SIGTERM")
        assert [process.wait(10) for process in terminated] == [0, 0]
    assert [one["counted"] for one in found] == [ROUNDS * KINDS] * RANKS
    assert [one["sums"] for one in found] == [[ROUNDS * sum(1000**rank for rank in range(RANKS))]] * RANKS


@pytest.mark.parametrize("consistency", ["asp", "ssp:s=2"])
def test_training_goes_on_with_weights_and_state(pool: Pool, consistency: str) -> None:
    with Processes(RANKS, 2, elastic=True) as cluster:
        server = cluster.processes["server1"].pid
        found = pool.run(cluster, bodies.train_without_server, consistency, server, cluster.rank_settings(0))
    assert all(one["accuracy"] > 0.9 for one in found), found


def test_a_value_without_copies_ends_the_world(pool: Pool) -> None:
    with Processes(RANKS, 2, elastic=True) as cluster:
        found = pool.run(cluster, bodies.lose_lone_value, cluster.processes["server"].pid)
    assert [name for name, _, _ in found] == ["PeerLostError"] * RANKS, found
    assert all("server" in text for _, text, _ in found), found
