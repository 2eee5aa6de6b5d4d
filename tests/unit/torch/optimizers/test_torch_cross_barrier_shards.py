"""Sharded optimizers across the barrier, in worlds of threads: the same bits as those that wait."""

from __future__ import annotations

import queue
import threading
from typing import Any

import pytest
import torch
from torch import nn

from byteps_like.errors import PeerLostError
from byteps_like.torch.job import runtime
from byteps_like.worker.local import LocalWorker
from byteps_like.worker.local_group import LocalOperation
from tests.fakes.native_world import run_native_world
from tests.fakes.thread_world import ThreadWorld, run_world
from tests.scenarios.crossing import shards
from tests.scenarios.crossing.models import OPTIMIZERS, Run, plain_loss
from tests.scenarios.models import batch, mlp
from tests.scenarios.optimizers.sharded import SHARDED


@pytest.mark.parametrize(("size", "servers"), [(1, False), (2, True), (3, False)])
@pytest.mark.parametrize("body", shards.SCENARIOS, ids=lambda body: body.__name__)
def test_scenario(body, size, servers):
    run_world(size, body, world=ThreadWorld(size, partition_bytes=1024), servers=servers)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("body", shards.MANY, ids=lambda body: body.__name__)
def test_misuse(body, size):
    run_world(size, body, world=ThreadWorld(size, partition_bytes=1024), servers=False)


def test_over_real_links():
    run_native_world(2, shards.of_several_types, partition_bytes=1024)


def test_the_next_forward_raises_what_ended_the_job():
    world = ThreadWorld(2, partition_bytes=1024)
    gone = PeerLostError("rank 1 is gone", rank=0, peer=1)

    def body(bps, rank, size):
        run = Run(bps, True, OPTIMIZERS["Adam"], mlp(), **SHARDED)
        run.train(rank, size, range(2))
        run.optimizer.synchronize()
        if rank == 1:
            world.fail(gone)
            return
        with pytest.raises(PeerLostError, match="rank 1 is gone"):
            plain_loss(run.model, 2, rank, size).backward()
            run.optimizer.step()
            run.model(batch(0)[0])

    run_world(2, body, world=world, servers=False)


class HeldOperation(LocalOperation):
    """Ends when it is let go; whoever waits before that has waited too early."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    def done(self) -> bool:
        return self.ended.is_set()

    def wait(self, timeout: float | None = None) -> None:
        assert self.ended.is_set(), "waited for layers that are not used yet"


class HeldLane:
    """A lane whose all-gathers are held."""

    def __init__(self, lane: Any, held: queue.Queue[HeldOperation]) -> None:
        self._lane, self._held = lane, held
        self.reduce_scatter = lane.reduce_scatter

    def all_gather(self, *arguments: Any) -> HeldOperation:
        self._lane.all_gather(*arguments)
        operation = HeldOperation()
        self._held.put(operation)
        return operation


def test_a_layer_waits_for_its_own_parameters_only():
    """The last layer's are gathered only after the first layer has been used."""
    import byteps_like.torch as bps

    held: queue.Queue[HeldOperation] = queue.Queue()
    let_go = []
    with runtime.bound(LocalWorker(partition_bytes=4096)):
        model = nn.Sequential(nn.Linear(32, 32, bias=False), nn.Linear(32, 32, bias=False))
        plain = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = bps.DistributedOptimizer(plain, shard="optimizer", cross_barrier=True, model=model)

        def first_layer_was_used(*_: Any) -> None:
            if optimizer._distribution.guards.flight is not None:
                let_go.append(held.get(timeout=20.0))
                let_go[-1].ended.set()

        model[0].register_forward_hook(first_layer_was_used)
        for step in range(3):
            if step == 1:
                (arena,) = optimizer._distribution.reducer.arenas
                assert [arena.slots[slot].parameter is model[1].weight for slot in arena.chunks[0].pieces] == [True]
                arena.lanes[0] = HeldLane(arena.lanes[0], held)
            before = model[1].weight.detach().clone()
            model(torch.ones(1, 32)).sum().backward()
            optimizer.step()
        model(torch.ones(1, 32))
        assert len(let_go) == 2 and not torch.equal(model[1].weight, before)
        optimizer.close()
