"""Horovod's operations, DDP's hook and training, between real processes, with servers and without."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.multiprocess.real_world import Pool, job
from tests.scenarios import ddp_hooks

SERVERS = [1]


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    processes = Pool(3)
    yield processes
    processes.close()


@pytest.mark.parametrize("servers", SERVERS)
@pytest.mark.parametrize("body", ddp_hooks.SCENARIOS, ids=lambda body: body.__name__)
def test_ddp_hook(pool: Pool, body: Callable[..., None], servers: int) -> None:
    with job(2, servers) as cluster:
        pool.run(cluster, body)


@pytest.mark.parametrize("servers", SERVERS)
def test_a_failure_comes_out_of_backward(pool: Pool, servers: int) -> None:
    with job(3, servers, stall_warning=0.5, stall_timeout=2.0) as cluster:
        seen = pool.run(cluster, ddp_hooks.failing)
    for text in seen[:2]:
        assert text.split(":")[0] in ("PeerLostError", "StalledError"), text
        assert "rank 2" in text or "worker 2" in text
