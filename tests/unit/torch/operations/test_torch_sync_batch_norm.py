"""SyncBatchNorm in worlds of threads, with and without servers, and alone."""

from __future__ import annotations

import pytest

import byteps_like.torch as bps
from byteps_like.torch.job import runtime
from byteps_like.worker.local import LocalWorker
from tests.fakes.thread_world import run_world
from tests.scenarios.operations.normalization import SCENARIOS


@pytest.mark.parametrize("servers", [True, False], ids=["servers", "collectives"])
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("body", SCENARIOS, ids=lambda body: body.__name__)
def test_scenario(body, size, servers):
    run_world(size, body, servers=servers)


@pytest.mark.parametrize("body", SCENARIOS, ids=lambda body: body.__name__)
def test_scenario_alone(body):
    with runtime.bound(LocalWorker()):
        body(bps, 0, 1)
