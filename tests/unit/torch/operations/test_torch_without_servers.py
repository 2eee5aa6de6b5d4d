"""The whole torch API in worlds without servers: every scenario again, over collectives."""

from __future__ import annotations

import pytest

from tests.fakes.thread_world import ThreadWorld, run_world
from tests.scenarios.operations import calls as operations
from tests.scenarios.optimizers import membership, misuse, replicas
from tests.scenarios.optimizers import updates as optimizers

SCENARIOS = [*operations.SCENARIOS, *optimizers.SCENARIOS, *membership.SCENARIOS, *replicas.SCENARIOS]


@pytest.mark.parametrize("body", SCENARIOS, ids=lambda body: body.__name__)
def test_scenario(body):
    run_world(3, body, world=ThreadWorld(3, partition_bytes=512), servers=False)


@pytest.mark.parametrize("body", misuse.SCENARIOS, ids=lambda body: body.__name__)
def test_misuse(body):
    run_world(2, body, world=ThreadWorld(2, partition_bytes=1024), servers=False)
