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
    processes = Pool(2)
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
