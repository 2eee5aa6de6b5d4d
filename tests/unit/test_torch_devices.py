"""Tensors of a device that the host plays (tests/fakes/software_device.py): the scenarios are those of the CPU's."""

from __future__ import annotations

import pytest

from tests.fakes.software_device import software_device
from tests.fakes.thread_world import ThreadWorld, run_world
from tests.scenarios import operations, optimizers

LONG = {"every_class"}  # which classes of optimizers there are is no matter of devices
SCENARIOS = [body for body in (*optimizers.SCENARIOS, *operations.SCENARIOS) if body.__name__ not in LONG]


@pytest.mark.parametrize("servers", [True, False], ids=["servers", "allreduce"])
@pytest.mark.parametrize("body", SCENARIOS, ids=lambda body: body.__name__)
def test_scenarios(body, servers):
    with software_device() as device:
        run_world(2, body, world=ThreadWorld(2, partition_bytes=1024), servers=servers)
    assert device.waits == 0
