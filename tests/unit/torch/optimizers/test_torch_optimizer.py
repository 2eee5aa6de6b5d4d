"""DistributedOptimizer in worlds of one to four ranks."""

from __future__ import annotations

import pytest

from tests.fakes.thread_world import ThreadWorld, run_world
from tests.scenarios.optimizers import membership
from tests.scenarios.optimizers import updates as optimizers

SCENARIOS = [*optimizers.SCENARIOS, *membership.SCENARIOS]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("body", SCENARIOS, ids=lambda body: body.__name__)
def test_scenario(body, size):
    run_world(size, body, world=ThreadWorld(size, partition_bytes=1024))
