"""Broadcast of models and optimizer state, DistributedDataParallel, and misuse, in worlds of threads."""

from __future__ import annotations

import pytest
import torch

from tests.fakes.thread_world import ThreadWorld, run_world
from tests.scenarios.optimizers import misuse, replicas


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("body", replicas.SCENARIOS, ids=lambda body: body.__name__)
def test_scenario(body, size):
    run_world(size, body, world=ThreadWorld(size, partition_bytes=1024))


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("body", misuse.SCENARIOS, ids=lambda body: body.__name__)
def test_misuse(body, size):
    run_world(size, body, world=ThreadWorld(size, partition_bytes=1024))


def test_large_tensors_travel_in_chunks(monkeypatch):
    monkeypatch.setattr("byteps_like.torch.ops.packed.CHUNK_BYTES", 1000)
    monkeypatch.setattr("byteps_like.torch.ops.packed.chunks.__defaults__", (1000,))
    world = ThreadWorld(2)

    def body(bps, rank, size):
        tensors = [torch.full((700,), float(rank + 1)), torch.full((3,), rank + 1, dtype=torch.int16)]
        bps.broadcast_parameters(tensors, 1)
        assert tensors[0].eq(2).all() and tensors[1].eq(2).all()

    run_world(2, body, world=world)
    assert world.pushed["packed0.1024.0"] == world.pushed["packed0.1024.1"] > 0
