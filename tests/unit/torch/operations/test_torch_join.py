"""join() in worlds of threads, over servers and over collectives."""

from __future__ import annotations

import threading

import pytest
import torch

from byteps_like.errors import BytePSLikeError, InvalidArgumentError, PeerLostError
from tests.fakes.thread_world import ThreadWorld, run_world
from tests.scenarios.operations.joins import SCENARIOS


@pytest.mark.parametrize("servers", [True, False], ids=["servers", "collectives"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("body", SCENARIOS, ids=lambda body: body.__name__)
def test_scenario(body, size, servers):
    run_world(size, body, world=ThreadWorld(size, partition_bytes=1024), servers=servers)


def test_an_operation_that_a_joined_rank_misses_fails_where_it_was_made():
    started, errors = threading.Event(), {}

    def body(bps, rank, size):
        try:
            if rank == 0:
                handle = bps.allgather_async(torch.ones(1), name="late")
                started.set()
                bps.synchronize(handle)
            else:
                assert started.wait(10)
                assert bps.join() == 0
        except BytePSLikeError as error:
            errors[rank] = error

        if rank == 0:
            bps.join()

    run_world(2, body, servers=False)
    assert list(errors) == [0] and isinstance(errors[0], InvalidArgumentError)
    assert str(errors[0]).startswith("allgather ('late') can't be made: rank 1 has joined")


def test_a_rank_that_dies_ends_the_wait():
    world, ready = ThreadWorld(2), threading.Barrier(2)

    def body(bps, rank, size):
        ready.wait(10)  # else rank 1 may die before rank 0 is in the world
        if rank == 0:
            with pytest.raises(PeerLostError, match="rank 1"):
                bps.join()
        else:
            world.fail(PeerLostError("rank 1 died"))

    run_world(2, body, world=world, servers=False)
