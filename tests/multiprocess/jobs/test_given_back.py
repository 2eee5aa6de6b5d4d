"""What a long job gives back while it runs: descriptors, mappings and sums of what has gone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.multiprocess.real_world import Cluster, Pool, job
from tests.scenarios import given_back


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    processes = Pool(3)
    yield processes
    processes.close()


def run_and_watch(pool: Pool, cluster: Cluster, body: Callable[..., Any], turns: int) -> tuple[list[Any], int, int]:
    """The ranks' answers; the most keys, and bytes of sums, that the server had meanwhile."""
    keys = nbytes = 0
    with ThreadPoolExecutor(1) as executor:
        running = executor.submit(pool.run, cluster, body, os.getpid(), turns)
        while not running.done():
            stats = cluster.servers[0]._server._store.stats()
            keys, nbytes = max(keys, stats["keys"]), max(nbytes, stats["memory"])
            time.sleep(0.005)
    return running.result(), keys, nbytes


@pytest.mark.parametrize(("body", "turns"), [(given_back.buffers, 50), (given_back.optimizers, 20)])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_what_has_gone_is_held_by_nobody(pool: Pool, body: Callable[..., Any], turns: int, transport: str) -> None:
    with job(2, 1, force_distributed=True, partition_bytes=1 << 14, transport=transport) as cluster:
        answers, keys, nbytes = run_and_watch(pool, cluster, body, turns)
    for own_first, server_first, own_last, server_last in answers:
        assert own_last[0] <= own_first[0]
        assert own_last[1] <= own_first[1]
        assert server_last[0] <= server_first[0]
        assert server_last[1] <= server_first[1]
    assert 0 < keys <= 8
    assert nbytes <= 1 << 20


LONG = [(given_back.names, 1000), (given_back.calls, 100), (given_back.names_while_some_have_joined, 20)]


@pytest.mark.parametrize(("body", "turns"), LONG)
@pytest.mark.parametrize("servers", [1, 0])
def test_names_that_are_used_once_cost_nobody_anything(
    pool: Pool, body: Callable[..., Any], turns: int, servers: int
) -> None:
    with job(3, servers, force_distributed=True) as cluster:
        answers = pool.run(cluster, body, os.getpid(), turns, together=True)
        check_held_by_others(cluster)
    for first, last in answers:
        assert more(first, last) == {}


def check_held_by_others(cluster: Cluster) -> None:
    """The scheduler and the server, after an epoch with a few names that are kept."""
    for server in cluster.servers:
        assert server._server._store.stats()["keys"] <= 32
        table: Any = cluster._scheduler._service._declarations  # type: ignore[union-attr]
        assert len(table._entries) <= len(table._names) <= 32
        assert table._parts <= 32
        placed = sum(part.nbytes for entry in table._entries.values() for part in entry.newest.partitions)
        assert sum(table._placer.loads().values()) == placed


@pytest.mark.parametrize("servers", [1, 0])
def test_process_sets_that_are_removed_cost_nobody_anything(pool: Pool, servers: int) -> None:
    with job(3, servers, force_distributed=True) as cluster:
        answers = pool.run(cluster, given_back.process_sets, os.getpid(), 50, together=True)
    for first, last in answers:
        assert more(first, last) == {}


@pytest.mark.parametrize("servers", [1, 0])
def test_arenas_that_are_dropped_in_flight_hold_only_their_names(pool: Pool, servers: int) -> None:
    with job(3, servers, force_distributed=True) as cluster:
        answers = pool.run(cluster, given_back.arenas_in_flight, os.getpid(), 20, together=True)
        assert all(server._server._store.stats()["keys"] <= 8 for server in cluster.servers)
    for first, last in answers:
        assert more(first, last) == {}


def more(first: dict[str, int], last: dict[str, int]) -> dict[str, int]:
    """What more is held at the end than was at the beginning."""
    return {what: count - first[what] for what, count in last.items() if count > first[what]}
