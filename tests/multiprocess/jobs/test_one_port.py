"""Whole jobs whose servers have one port each: links, calls, the door and metrics come in there, encrypted or not."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import psutil
import pytest

from byteps_like.config import Config
from byteps_like.control.calls.client import query_status
from byteps_like.control.types import Member
from byteps_like.dtypes import DType, Op
from byteps_like.errors import BytePSLikeError
from byteps_like.portable.join import join
from byteps_like.server.admin import server_stats
from byteps_like.worker.api import TensorSpec
from tests.multiprocess.real_world import Pool, Processes

RANKS, STEPS = 2, 5


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    made = Pool(RANKS)
    yield made
    made.close()


def ports_of(pid: int) -> set[int]:
    """On which a process listens for TCP."""
    listening = psutil.Process(pid).net_connections(kind="tcp")
    return {one.laddr.port for one in listening if one.status == psutil.CONN_LISTEN}


def servers_of(config: Config) -> list[Member]:
    """Once both have joined."""
    deadline = time.monotonic() + 60
    while True:
        try:
            members = [one.member for one in query_status(config).members if one.member.role == "server"]
        except BytePSLikeError:
            members = []
        if len(members) == RANKS:
            return members
        assert time.monotonic() < deadline
        time.sleep(0.05)


@contextmanager
def one_port_job(tls: str) -> Iterator[tuple[Processes, Config]]:
    settings = {"one_port": 1, "metrics_port": 1, "tls": tls, "transport": "tcp"}
    with Processes(RANKS, RANKS, **settings) as job:
        given = {name: value for name, value in job.rank_settings(0).items() if name != "metrics_port"}
        yield job, Config.from_env({}, **given)


def train(bps: Any, rank: int, size: int) -> bytes:
    """A few steps of a model whose gradients servers average: the parameters afterwards."""
    import torch

    torch.manual_seed(rank)
    model = torch.nn.Linear(64, 8)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(torch.full((4, 64), float(rank + step))).square().mean().backward()
        optimizer.step()
    del size
    return b"".join(value.detach().numpy().tobytes() for value in model.parameters())


def look_around(bps: Any, rank: int, size: int, config: Config) -> set[str]:
    """What is asked of servers while the job runs: counters by a call and by GET. The transports of the links."""
    import torch

    from byteps_like.torch.job.runtime import current

    bps.push_pull(torch.ones(1000) * rank, name="something")
    for server in servers_of(config):
        assert server_stats(config, server.admin).counters["links"] >= size
        page = urllib.request.urlopen(f"http://{server.admin}/metrics", timeout=20).read().decode()
        assert "byteps_like_strangers_refused_total{" in page
    worker: Any = current().worker
    return set(worker.links())


@pytest.mark.parametrize("tls", ["off", "on"])
def test_a_job_trains_with_one_port_a_process(pool: Pool, tls: str) -> None:
    with one_port_job(tls) as (job, config):
        members = servers_of(config)
        for member in members:
            assert ports_of(member.pid) == {int(member.admin.rpartition(":")[2])}
            assert member.door == f"tcp://{member.admin}"
            assert [url.partition("://")[2] for url in member.urls if "tcp" in url] == [member.admin]
        assert len(ports_of(job.processes["scheduler"].pid)) == 1
        assert {member.pid for member in members} == {job.processes[name].pid for name in ("server", "server1")}
        first, second = pool.run(job, train, together=True)
        assert first == second


@pytest.mark.parametrize("tls", ["off", "on"])
def test_counters_are_had_at_the_port_of_links(pool: Pool, tls: str) -> None:
    with one_port_job(tls) as (job, config):
        links = {"off": "tcp", "on": "tls+tcp"}[tls]
        assert pool.run(job, look_around, config, together=True) == [{links}] * RANKS


def portable(job: Processes, rank: int, tls: str) -> np.ndarray[Any, Any]:
    """What a rank gets that comes in by the doors."""
    given = {**job.rank_settings(rank), "one_port": False, "metrics_port": 0, "tls": tls}
    worker = join(Config.from_env({}, **given))
    try:
        value = np.arange(100_000, dtype=np.float32) * (rank + 1)
        (declared,) = worker.declare([TensorSpec("something", DType.FLOAT32, value.shape)])
        worker.push_pull(declared, value.ctypes.data, Op.SUM).wait(30)
        worker.barrier(30)
        return value
    finally:
        worker.close()


@pytest.mark.parametrize("tls", ["off", "on"])
def test_portable_workers_come_in_there_too(tls: str) -> None:
    with one_port_job(tls) as (job, _), ThreadPoolExecutor(RANKS) as threads:
        results = [each.result(60) for each in [threads.submit(portable, job, rank, tls) for rank in range(RANKS)]]
        for result in results:
            np.testing.assert_array_equal(result, np.arange(100_000, dtype=np.float32) * 3)
