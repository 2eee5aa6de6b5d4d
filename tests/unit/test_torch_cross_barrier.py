"""Crossing the barrier changes when parameters are updated, and nothing else."""

from __future__ import annotations

import pytest

from tests.fakes.thread_world import ThreadWorld, run_world
from tests.scenarios import crossing


@pytest.mark.parametrize("servers", [True, False])
def test_fifty_steps_of_each_optimizer_have_the_same_bits(servers):
    run_world(2, crossing.fifty_steps, world=ThreadWorld(2, partition_bytes=512), servers=servers)


@pytest.mark.parametrize(("size", "servers"), [(1, True), (2, True), (2, False)])
@pytest.mark.parametrize("body", crossing.SCENARIOS, ids=lambda body: body.__name__)
def test_scenario(body, size, servers):
    run_world(size, body, world=ThreadWorld(size, partition_bytes=1024), servers=servers)
