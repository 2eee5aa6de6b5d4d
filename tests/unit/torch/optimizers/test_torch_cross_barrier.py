"""Crossing the barrier changes when parameters are updated, and nothing else."""

from __future__ import annotations

import threading

import pytest

from byteps_like.errors import PeerLostError
from byteps_like.torch.job import runtime
from tests.fakes.settings import configure
from tests.fakes.thread_world import ThreadWorld, run_world
from tests.scenarios.crossing import factors as crossing_factors
from tests.scenarios.crossing import low_rank as crossing_low_rank
from tests.scenarios.crossing import misuse as crossing_misuse
from tests.scenarios.crossing import rows as crossing_rows
from tests.scenarios.crossing import updates as crossing
from tests.scenarios.crossing.models import OPTIMIZERS, Run, plain_loss, same
from tests.scenarios.models import batch, mlp


@pytest.mark.parametrize("servers", [True, False])
@pytest.mark.slow
def test_fifty_steps_of_each_optimizer_have_the_same_bits(servers):
    run_world(2, crossing.fifty_steps, world=ThreadWorld(2, partition_bytes=512), servers=servers)


@pytest.mark.parametrize(("size", "servers"), [(1, True), (2, True), (2, False)])
@pytest.mark.parametrize(
    "body",
    [*crossing.SCENARIOS, *crossing_rows.SCENARIOS, *crossing_misuse.ALL_SIZES],
    ids=lambda body: body.__name__,
)
def test_scenario(body, size, servers):
    run_world(size, body, world=ThreadWorld(size, partition_bytes=1024), servers=servers)


@pytest.mark.parametrize("servers", [True, False])
@pytest.mark.parametrize(
    "body",
    [
        *crossing_misuse.MANY,
        crossing_rows.rows_of_a_step_thrown_away,
        crossing_low_rank.cleared_against_step,
        crossing_factors.thrown_away,
    ],
    ids=lambda body: body.__name__,
)
def test_misuse(body, servers):
    run_world(2, body, world=ThreadWorld(2, partition_bytes=1024), servers=servers)


@pytest.mark.parametrize(("size", "servers"), [(1, True), (2, True), (3, True), (2, False), (3, False)])
@pytest.mark.parametrize("body", crossing_low_rank.SCENARIOS, ids=lambda body: body.__name__)
def test_powersgd(body, size, servers):
    run_world(size, body, world=ThreadWorld(size, partition_bytes=512), servers=servers)


@pytest.mark.parametrize(("size", "servers"), [(1, True), (2, True), (3, True), (2, False), (3, False)])
@pytest.mark.parametrize("body", crossing_factors.SCENARIOS, ids=lambda body: body.__name__)
def test_factors(body, size, servers):
    run_world(size, body, world=ThreadWorld(size, partition_bytes=512), servers=servers)


def test_a_step_with_factors_returns_before_other_ranks_have_any():
    run_world(3, crossing_factors.returns_at_once, threading.Event(), servers=False)


@pytest.mark.parametrize("servers", [True, False])
def test_the_next_forward_raises_what_ended_the_job(servers):
    world = ThreadWorld(2, partition_bytes=1024)
    gone = PeerLostError("rank 1 is gone", rank=0, peer=1)

    def body(bps, rank, size):
        run = Run(bps, True, OPTIMIZERS["Adam"], mlp())
        run.train(rank, size, range(2))
        run.optimizer.synchronize()
        if rank == 1:
            world.fail(gone)
            return
        with pytest.raises(PeerLostError, match="rank 1 is gone"):
            plain_loss(run.model, 2, rank, size).backward()
            run.optimizer.step()
            run.model(batch(0)[0])

    run_world(2, body, world=world, servers=servers)


@pytest.mark.parametrize("rules", [{"*weight": "powersgd:rank=2"}, {"*": "onebit"}], ids=["powersgd", "onebit"])
def test_a_step_in_flight_when_the_job_ends_counts_in_the_next_one(rules):
    kept: dict[int, list[Run]] = {}

    def first(bps, rank, size):
        configure(runtime.current(), min_compress_bytes=0)
        kept[rank] = [Run(bps, crosses, OPTIMIZERS["SGD"], mlp(), compression=rules) for crosses in (True, False)]
        for run in kept[rank]:
            run.train(rank, size, range(3))

    def second(bps, rank, size):
        configure(runtime.current(), min_compress_bytes=0)
        for run in kept[rank]:
            run.train(rank, size, range(3, 6))
        same(*kept[rank])

    for body in (first, second):
        run_world(2, body, world=ThreadWorld(2, partition_bytes=1024))
