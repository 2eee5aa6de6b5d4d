"""Distributed training equals that of one process on the whole batch, and is bit-identical on all ranks."""

from __future__ import annotations

import pytest
import torch

from tests.fakes.thread_world import ThreadWorld, run_world
from tests.scenarios.models import distance
from tests.scenarios.optimizers import training

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_equals_single_process(size, dtype):
    expected = training.single(dtype=dtype)
    world = ThreadWorld(size, partition_bytes=1024)
    results = run_world(size, training.train, training.sgd, dtype, world=world)
    assert distance(results[0], expected) < TOLERANCE[dtype]
    assert all(torch.equal(result, results[0]) for result in results)
