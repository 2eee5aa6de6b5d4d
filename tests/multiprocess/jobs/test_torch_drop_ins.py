"""Horovod's operations, join, DDP's hook and training, between real processes, with servers and without."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from tests.multiprocess.real_world import Pool, job
from tests.scenarios.c10d import ddp_hooks
from tests.scenarios.operations import calls as operations
from tests.scenarios.operations import horovod, joins, normalization
from tests.scenarios.optimizers import membership, replicas, routes, training
from tests.scenarios.optimizers import updates as optimizers

SERVERS = [0, 1]
HOROVOD = [
    *horovod.SCENARIOS, *routes.SCENARIOS, *normalization.SCENARIOS, operations.gradients_flow,
    operations.integers_are_scaled, operations.integer_average_truncates, operations.hundreds_without_a_name,
    operations.a_call_that_others_make_first, optimizers.adasum,
    optimizers.names_of_parameters, optimizers.step_after_synchronize_warns, replicas.optimizer_state_of_any_kind,
]  # fmt: skip


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    processes = Pool(4)
    yield processes
    processes.close()


@pytest.mark.parametrize("ranks", [2, 3])
def test_training_without_servers_equals_one_process(pool: Pool, ranks: int) -> None:
    with job(ranks, 0, partition_bytes=2048) as cluster:
        results = pool.run(cluster, training.fifty_steps, torch.float64)
    expected = torch.tensor(training.fifty_losses(torch.float64))
    for worst, losses in results:
        assert worst < 1e-12
        assert losses == results[0][1]
        assert (torch.tensor(losses) - expected).abs().max() < 1e-12 * expected.abs().max()


WITHOUT_SERVERS = [
    operations.every_type_and_op, operations.empty_and_scalar, operations.many_in_flight, operations.broadcasts,
    operations.objects, optimizers.every_class, optimizers.accumulation, optimizers.zeroed_in_place,
    optimizers.synchronize_clip_step, optimizers.grad_scaler, membership.unused_on_some_ranks,
    membership.mixed_types_and_sparse, membership.sparse_gradients, replicas.optimizer_state, replicas.wrapped_training,
]  # fmt: skip


@pytest.mark.parametrize("body", WITHOUT_SERVERS, ids=lambda body: body.__name__)
def test_scenario_without_servers(pool: Pool, body: Callable[..., None]) -> None:
    with job(3, 0, partition_bytes=1024) as cluster:
        pool.run(cluster, body, together=True)


@pytest.mark.parametrize("servers", SERVERS)
@pytest.mark.parametrize("body", HOROVOD, ids=lambda body: body.__name__)
def test_horovod(pool: Pool, body: Callable[..., None], servers: int) -> None:
    with job(4, servers) as cluster:
        pool.run(cluster, body, together=True)


@pytest.mark.parametrize("servers", SERVERS)
@pytest.mark.parametrize("body", joins.SCENARIOS, ids=lambda body: body.__name__)
def test_join(pool: Pool, body: Callable[..., None], servers: int) -> None:
    with job(3, servers, partition_bytes=1024) as cluster:
        pool.run(cluster, body, together=True)


@pytest.mark.parametrize("servers", SERVERS)
@pytest.mark.parametrize("body", ddp_hooks.SCENARIOS, ids=lambda body: body.__name__)
def test_ddp_hook(pool: Pool, body: Callable[..., None], servers: int) -> None:
    with job(2, servers) as cluster:
        pool.run(cluster, body, together=True)


@pytest.mark.parametrize("servers", SERVERS)
def test_a_failure_comes_out_of_backward(pool: Pool, servers: int) -> None:
    with job(3, servers, stall_warning=0.5, stall_timeout=2.0) as cluster:
        seen = pool.run(cluster, ddp_hooks.failing)
    for text in seen[:2]:
        assert text.split(":")[0] in ("PeerLostError", "StalledError", "ShutdownError"), text
        assert "rank 2" in text or "worker 2" in text
