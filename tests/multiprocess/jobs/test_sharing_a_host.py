"""Several jobs on one host don't share names; processes that have nothing to do use no processor time."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import torch

from tests.multiprocess.real_world import Pool, Processes, job

_WINDOW = 3.0  # seconds


@pytest.fixture(scope="module")
def pools() -> Iterator[tuple[Pool, Pool]]:
    both = Pool(2), Pool(2)
    yield both
    for pool in both:
        pool.close()


def own_sums(bps: Any, rank: int, size: int, factor: int) -> bool:
    """Many rounds under one name; every job has its own values."""
    buffer = torch.empty(50_000)
    for step in range(40):
        buffer.fill_(float(factor * (rank + 1) + step))
        bps.push_pull_inplace(buffer, average=False, name="layer.weight")
        if not bool((buffer == factor * 3 + 2 * step).all()):
            return False
    return True


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_two_jobs_at_once(pools: tuple[Pool, Pool], transport: str) -> None:
    results: dict[int, list[bool]] = {}
    with job(2, 2, transport=transport) as first, job(2, 2, transport=transport) as second:

        def run(index: int) -> None:
            results[index] = pools[index].run((first, second)[index], own_sums, 10 ** (index + 1))

        threads = [threading.Thread(target=run, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == {0: [True, True], 1: [True, True]}


def idle(bps: Any, rank: int, size: int, others: dict[str, int]) -> dict[str, float]:
    """After some traffic: nothing. The share of a core that this process and `others` (name: pid) use meanwhile."""
    bps.push_pull(torch.ones(1_000_000), name="layer.weight")
    time.sleep(0.5)
    watched = {name: psutil.Process(pid) for name, pid in {**others, f"worker {rank}": os.getpid()}.items()}
    before = {name: sum(process.cpu_times()[:2]) for name, process in watched.items()}
    time.sleep(_WINDOW)
    bps.barrier()
    return {name: (sum(process.cpu_times()[:2]) - before[name]) / _WINDOW for name, process in watched.items()}


def test_idle_processes_sleep(pools: tuple[Pool, Pool]) -> None:
    with Processes(ranks=2) as cluster:
        pids = {role: process.pid for role, process in cluster.processes.items()}
        for shares in pools[0].run(cluster, idle, pids):
            assert all(share < 0.02 for share in shares.values()), shares
