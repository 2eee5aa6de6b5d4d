"""The torch API between real processes, over real servers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from byteps_like.timeline.merge import merge
from byteps_like.timeline.recorder import recorder
from tests.multiprocess.real_world import Pool, job
from tests.scenarios import traced
from tests.scenarios.crossing import factors as crossing_factors
from tests.scenarios.crossing import low_rank as crossing_low_rank
from tests.scenarios.crossing import misuse as crossing_misuse
from tests.scenarios.crossing import rows as crossing_rows
from tests.scenarios.crossing import shards as crossing_shards
from tests.scenarios.crossing import updates as crossing
from tests.scenarios.operations import calls as operations
from tests.scenarios.optimizers import (
    batches,
    compression,
    factors,
    factors_codecs,
    membership,
    misuse,
    replicas,
    sharded,
    sharded_wire,
    training,
    tuned,
    unused,
)
from tests.scenarios.optimizers import updates as optimizers

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6}


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    processes = Pool(4)
    yield processes
    processes.close()


@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_training_equals_one_process(pool: Pool, ranks: int, servers: int) -> None:
    for dtype, tolerance in TOLERANCE.items():
        with job(ranks, servers, force_distributed=True, partition_bytes=2048) as cluster:
            results = pool.run(cluster, training.fifty_steps, dtype)
        expected = torch.tensor(training.fifty_losses(dtype))
        for worst, losses in results:
            assert worst < tolerance
            assert losses == results[0][1]
            assert (torch.tensor(losses) - expected).abs().max() < tolerance * expected.abs().max()


SCENARIOS = [
    operations.every_type_and_op,
    operations.wider_types,
    operations.integer_average_truncates,
    operations.bool_is_any_or_all,
    operations.out_of_place_leaves_input,
    operations.empty_and_scalar,
    operations.many_in_flight,
    operations.rounds_of_one_name,
    operations.broadcasts,
    operations.compressed,
    operations.objects,
    optimizers.every_class,
    optimizers.accumulation,
    optimizers.lbfgs,
    optimizers.state_dict_both_ways,
    membership.unused_everywhere,
    membership.unused_on_some_ranks,
    membership.shared,
    membership.mixed_types_and_sparse,
    membership.groups_come_and_go,
    membership.two_optimizers,
    misuse.too_many_backwards,
    misuse.changed_on_one_rank,
    crossing.finer_towards_the_input,
    crossing.shared_reused_and_read,
    crossing.states_in_flight,
    crossing.the_model_outlives_the_optimizer,
    crossing_factors.as_if_it_waited,
    crossing_factors.while_others_wait_elsewhere,
    crossing_low_rank.by_factors,
    crossing_low_rank.large_enough_to_be_cut,
    crossing_low_rank.a_rank_drops_all,
    crossing_low_rank.cleared_against_step,
    crossing_misuse.cleared_against_step,
    crossing_misuse.changed_on_one_rank,
    crossing_rows.sparse_gradients,
    crossing_rows.dense_by_rows,
    crossing_rows.rows_of_a_step_thrown_away,
    replicas.parameters_in_every_form,
    replicas.buffers_and_batch_norm,
    replicas.optimizer_state,
    replicas.wrapped_training,
    replicas.wrapped_unused,
    tuned.weights_stay,
    sharded.equal_to_the_unsharded,
    sharded.saved_by_others,
    sharded_wire.what_is_left_out_comes_later,
    crossing_shards.cast_and_encoded,
    crossing_shards.ranks_go_different_ways,
    factors.equal_to_the_dense,
    factors.thrown_away,
    factors.groups_are_added,
    factors_codecs.nothing_is_lost_on_the_way_back,
    compression.telescopes,
    compression.trains_by,
    compression.left_out_at_times,
    unused.sums_that_are_exact,
    unused.memory_stays,
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_scenario(pool: Pool, scenario: Callable[..., None]) -> None:
    """Over shared memory and TCP; the same processes again and again, so also init() after shutdown()."""
    for transport in ("shm", "tcp"):
        with job(2, 2, transport=transport, partition_bytes=1024) as cluster:
            pool.run(cluster, scenario, together=True)


@pytest.mark.parametrize("servers", [2, 0])
def test_updates_that_cross_the_barrier_have_the_same_bits(pool: Pool, servers: int) -> None:
    with job(2, servers, transport="tcp", partition_bytes=512) as cluster:
        pool.run(cluster, crossing.fifty_steps, together=True)
    with job(3 if servers == 0 else 2, servers, partition_bytes=1024) as cluster:
        pool.run(cluster, crossing.leaves_at_once)


@pytest.mark.parametrize(
    "options",
    [{}, {"compression": {"*weight": "powersgd:rank=2"}}, {"sufficient_factors": True}, {"shard": "optimizer"}],
    ids=["plain", "powersgd", "factors", "shards"],
)
@pytest.mark.parametrize("servers", [1, 0])
def test_a_step_is_brought_to_its_end_whose_model_is_dropped(pool: Pool, servers: int, options: dict[str, Any]) -> None:
    with job(2, servers, partition_bytes=1024) as cluster:
        pool.run(cluster, crossing.drops_at_once, options)


@pytest.mark.parametrize(
    "scenario",
    [
        crossing_low_rank.by_factors,
        crossing_low_rank.unused,
        crossing_low_rank.in_an_order_of_their_own,
        crossing_low_rank.while_others_wait_for_something_else,
        crossing_low_rank.uneven_batches,
    ],
    ids=lambda scenario: scenario.__name__,
)
def test_powersgd_across_the_barrier_among_three(pool: Pool, scenario: Callable[..., None]) -> None:
    """Without servers, which add in the order in which gradients arrive."""
    with job(3, 0, transport="tcp", partition_bytes=512) as cluster:
        pool.run(cluster, scenario, together=True)


@pytest.mark.parametrize("servers", [1, 0])
def test_batches_follow_the_speeds_of_ranks(pool: Pool, servers: int) -> None:
    with job(4, servers) as cluster:
        found = pool.run(cluster, batches.follow_a_slow_rank, together=True)
    assert len(set(found)) == 1 and sum(found[0]) == 56
    *fast, slow = found[0]
    assert 4 <= slow <= 12 and min(fast) > slow, found  # 16, 16, 16 and 8 on an idle machine
    with job(2, servers) as cluster:
        pool.run(cluster, batches.ranks_differ, together=True)
    with job(2, servers) as cluster:
        pool.run(cluster, batches.leave_at_once)


def test_what_rank_0_has_recorded_shows_all_ranks_and_the_server(pool: Pool, tmp_path: Path) -> None:
    with job(2, 1) as cluster:
        pool.run(cluster, traced.by_rank_0, str(tmp_path), 3, together=True)
    recorder.stop()  # the server's, in this process
    events = merge(tmp_path)["traceEvents"]
    steps = Counter(event["pid"] for event in events if event["cat"] == "step")
    assert steps == {0: 3, 1: 3}
    assert {event["pid"] for event in events} == {0, 1, 1000}
    updated = Counter(event["pid"] for event in events if event["cat"] == "partition" and event["name"] == "updated")
    assert min(updated[rank] for rank in (0, 1)) >= 3


@pytest.mark.parametrize("servers", [0, 1])
def test_a_timeline_is_started_and_stopped(pool: Pool, tmp_path: Path, servers: int) -> None:
    with job(2, servers) as cluster:
        pool.run(cluster, traced.from_start_to_stop, str(tmp_path), together=True)
