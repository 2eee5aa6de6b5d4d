"""Parameters without a gradient on any rank, or on some, where codecs remember what they have left out."""

from __future__ import annotations

import pytest
import torch

from byteps_like.torch.compression.policy import Compress
from tests.fakes.native_world import run_native_world
from tests.fakes.thread_world import ThreadWorld, run_world
from tests.scenarios.optimizers import unused


@pytest.mark.parametrize(("size", "servers"), [(1, False), (2, True), (3, False)])
@pytest.mark.parametrize("body", unused.SCENARIOS, ids=lambda body: body.__name__)
def test_scenario(body, size, servers):
    run_world(size, body, world=ThreadWorld(size, partition_bytes=1024), servers=servers)


@pytest.mark.parametrize("body", unused.SCENARIOS, ids=lambda body: body.__name__)
def test_over_the_native_cores_collectives(body):
    run_native_world(2, body, partition_bytes=1024)


@pytest.mark.parametrize("codec", ["onebit:block=64", "topk:ratio=0.1"])
def test_one_rank_loses_nothing_by_codecs_whose_sums_are_encoded_again(codec):
    run_world(1, unused.balances, Compress(codec, feedback=True))


@pytest.mark.parametrize("codec", ["onebit:block=64", "topk:ratio=0.1"])
def test_what_a_server_owes_counts_too(codec):
    """Of a two-way codec: the sum is encoded again, and the server remembers what that has left out, by elements of the
    arena; the layer is the last one, so the first to be ready, and begins it."""
    world, owed = ThreadWorld(2), []

    def body(bps, rank, size):
        ledger, missing = unused.Ledger(bps, rank, size, Compress(codec, feedback=True, two_way=True)), []
        for step in range(2):
            ledger.step(step)
            missing.append(ledger.missing(step)["at_times"].flatten())
            if rank == 0:
                (server,) = world.codecs.owed.values()
                owed.append(torch.from_numpy(server[: missing[-1].numel()].copy()).double() / size)
            bps.barrier()
        return missing

    for missing, server in zip(run_world(2, body, world=world)[0], owed, strict=True):
        assert server.abs().max() > 1e-2
        torch.testing.assert_close(missing, server, rtol=1e-4, atol=1e-4)
