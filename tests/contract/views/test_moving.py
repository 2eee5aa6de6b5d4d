"""Tensors are cut and placed anew while they are in use: no sum is wrong, servers free what was left."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from byteps_like.control.hosts.routes import host_id
from byteps_like.control.placing import rates
from byteps_like.dtypes import DType, Op
from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.job import runtime
from byteps_like.worker.api import Declared, TensorSpec, Worker
from tests.contract import mixed_job
from tests.contract.mixed_job import DEADLINE, MixedJob, in_threads, native_worker

COUNT = 300_000
RANKS = 3


@pytest.fixture
def job() -> Iterator[MixedJob]:
    job = MixedJob([native_worker] * RANKS, partition_bytes=1 << 20)
    yield job
    job.close()


def declare(worker: Worker, name: str) -> Declared:
    return worker.declare([TensorSpec(name, DType.FLOAT32, (COUNT,))])[0]


def rounds(worker: Any, name: str, until: threading.Event) -> tuple[int, Declared]:
    """push_pull, again and again, some ranks slower than others; how often, and where the tensor has gone."""
    declared, number, over = declare(worker, name), 0, np.zeros(1, np.float32)
    (ending,) = worker.declare([TensorSpec(f"{name}.over", DType.FLOAT32, (1,))])
    ramp = np.arange(COUNT, dtype=np.float32)
    while not over[0]:
        array = ramp % 1000 + worker.rank + number
        worker.push_pull(declared, array.ctypes.data, Op.SUM).wait(DEADLINE)
        assert (array == (ramp % 1000 + number) * RANKS + 3).all()
        over[0] = float(until.is_set())
        worker.push_pull(ending, over.ctypes.data, Op.MAX).wait(DEADLINE)
        number += 1
        time.sleep(0.002 * worker.rank)
    return number, worker.placed(declared)


def test_partitions_and_servers_change_between_rounds(job: MixedJob) -> None:
    until = threading.Event()
    threads = threading.Thread(target=_moving, args=(job.workers[1], until))
    threads.start()
    found = job.everybody(lambda worker: rounds(worker, "w", until))
    threads.join()
    assert len(set(found)) == 1
    number, last = found[0]
    assert number > 4
    assert {part.server for part in last.partitions} == {1} and len(last.partitions) == -(-4 * COUNT // (128 << 10))
    job.everybody(lambda worker: worker.barrier())
    # Both tensors' last keys, and nothing of those before; the barrier went by another way than the farewells.
    deadline = time.monotonic() + DEADLINE
    while keys(job) != len(last.partitions) + 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert keys(job) == len(last.partitions) + 1


def _moving(worker: Any, until: threading.Event) -> None:
    for step in ({"partition_bytes": 256 << 10}, {"weights": [3.0, 1.0]}, {"partition_bytes": 128 << 10}):
        time.sleep(0.05)
        assert worker.replan("test", **step) == 2
    assert worker.replan("test", weights=[0.0, 1.0]) == 2
    _wait_until_moved(worker)
    until.set()


def _wait_until_moved(worker: Any) -> None:
    """Until it has heard of moves, and made them all."""
    deadline = time.monotonic() + DEADLINE
    moves = worker._moves
    while (not moves._first_id or any(list(moves._next.values()))) and time.monotonic() < deadline:
        time.sleep(0.01)


def keys(job: MixedJob) -> int:
    return sum(server.native.stats()["keys"] for server in job.servers)


@pytest.mark.parametrize("crosses", [False, True])
def test_an_optimizer_follows(job: MixedJob, crosses: bool) -> None:
    import byteps_like.torch as bps

    def train(worker: Any) -> list[torch.Tensor]:
        torch.set_num_threads(1)
        with runtime.bound(worker):
            model = torch.nn.Sequential(torch.nn.Linear(64, 600), torch.nn.ReLU(), torch.nn.Linear(600, 8))
            for number, parameter in enumerate(model.parameters()):
                parameter.data.copy_(torch.linspace(-1, 1, parameter.numel()).reshape(parameter.shape) / (number + 5))
            optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
            if worker.size > 1:
                optimizer = bps.DistributedOptimizer(
                    optimizer, model.named_parameters(), cross_barrier=crosses, model=model
                )
            for step in range(12):
                inputs = torch.linspace(-1, 1, 6 * 64).reshape(6, 64) + step
                mine = inputs if worker.size == 1 else inputs[worker.rank * 2 : worker.rank * 2 + 2]
                optimizer.zero_grad()
                model(mine).square().mean().backward()
                optimizer.step()
                if worker.size > 1 and worker.rank == 0 and step in (2, 5):
                    worker.replan("test", partition_bytes=(10 << 10) * (step - 1), weights=[1.0, float(step)])
                if worker.size > 1:
                    worker.barrier()
            if worker.size > 1:
                optimizer.synchronize()
                (arena,) = runtime.current().arenas.values()
                assert len(arena._parts.pieces) == (3 if crosses else 1)
                for piece in arena._parts.pieces:
                    first = declared_first(worker, piece.declared)
                    assert worker.placed(first).tensor_id == piece.declared.tensor_id != first.tensor_id
                largest = arena._parts.pieces[0].declared
                assert len(largest.partitions) > len(declared_first(worker, largest).partitions)
                assert len(arena._parts.starts) == sum(len(piece.declared.partitions) for piece in arena._parts.pieces)
            return [parameter.detach().clone() for parameter in model.parameters()]

    from byteps_like.worker.local import LocalWorker

    found = job.everybody(train)
    (alone,) = in_threads([lambda: train(LocalWorker())])
    for ours in found:
        for one, other, reference in zip(ours, found[0], alone, strict=True):
            assert torch.equal(one, other)
            torch.testing.assert_close(one, reference, rtol=1e-4, atol=1e-5)


def declared_first(worker: Worker, declared: Declared) -> Declared:
    return worker.declare([declared.spec])[0]


def test_refused(job: MixedJob) -> None:
    worker: Any = job.workers[0]
    with pytest.raises(InvalidArgumentError, match="not those of 2 servers"):
        worker.replan("test", weights=[1.0])
    with pytest.raises(InvalidArgumentError, match="partition_bytes=7"):
        worker.replan("test", partition_bytes=7)


def test_a_server_whose_card_turns_out_slow_sums_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """The servers on hosts of their own; what the cards carry is told to the scheduler by heartbeats."""
    hosts = itertools.chain(["host 0", "host 1"], itertools.repeat(host_id()))
    monkeypatch.setattr(mixed_job, "host_id", lambda: next(hosts))
    monkeypatch.setattr(rates, "SETTLE", 0.1)
    job = MixedJob([native_worker] * RANKS, heartbeat_interval=0.05, replan=True)
    try:
        cards = [(server.client, server.client.member.rank) for server in job.servers]
        for client, rank in cards:
            slow = {"card_gbps": 0.25, "card_duty": 0.95}
            client.publish(lambda found=slow if rank == 1 else {"card_gbps": 1.0, "card_duty": 0.2}: found)
        for worker in job.workers:
            worker._client.publish(lambda: {"card_gbps": 1.0, "card_duty": 0.2})  # type: ignore[attr-defined]
        until = threading.Event()
        ending = threading.Thread(target=_end_when_moved, args=(job.workers[0], until))
        ending.start()
        found = job.everybody(lambda worker: rounds(worker, "w", until))
        ending.join()
        assert len({place for _, place in found}) == 1
        parts = found[0][1].partitions
        on_slow = sum(part.nbytes for part in parts if part.server == 1)
        assert on_slow == pytest.approx(0.2 * 4 * COUNT, rel=0.02)
    finally:
        job.close()


def _end_when_moved(worker: Any, until: threading.Event) -> None:
    _wait_until_moved(worker)
    until.set()
