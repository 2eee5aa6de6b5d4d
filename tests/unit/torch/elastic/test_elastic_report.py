"""Reports of steps: which are told, of which worlds, and what results lack of whom."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import byteps_like.torch as bps
from byteps_like.dtypes import DType
from byteps_like.torch.elastic.rejoining import rejoin
from byteps_like.torch.job import runtime as _runtime
from byteps_like.worker.api import Partition, TensorSpec
from byteps_like.worker.engine.step_log import KEPT, Lack, StepLog

SPEC = TensorSpec("gradients", DType.FLOAT32, (100,))
PARTS = [Partition(7 << 16 | number, 160 * number, nbytes, 0, 0) for number, nbytes in enumerate([160, 160, 80])]


@pytest.fixture
def stepping() -> Iterator[torch.optim.Optimizer]:
    bps.init()
    weights = torch.nn.Parameter(torch.zeros(3))
    optimizer = bps.DistributedOptimizer(torch.optim.SGD([weights], lr=0.1), [("weights", weights)])
    yield optimizer
    bps.shutdown()


def test_what_a_rank_has_brought_counts_by_partition() -> None:
    log = StepLog(3)
    log.note(0, SPEC, [(PARTS[0], (2, PARTS[0].key, 40, 160)), (PARTS[1], (2, PARTS[1].key, 0, 0))])
    (lack,) = log.lacks(0)
    assert lack == Lack(2, "gradients", 400, (range(40, 320),))
    assert lack.counted == 120
    assert str(lack) == "rank 2 is in 120 of 400 bytes of 'gradients'"


def test_half_of_a_payload_is_half_of_a_partition() -> None:
    log = StepLog()
    log.note(0, SPEC, [(PARTS[2], (1, PARTS[2].key, 20, 40))])
    assert log.lacks(0) == (Lack(1, "gradients", 400, (range(360, 400),)),)


def test_ranks_come_in_order_and_what_is_said_again_counts_once() -> None:
    log = StepLog()
    for _ in range(3):
        log.note(0, SPEC, [(PARTS[2], (3, PARTS[2].key, 0, 0)), (PARTS[0], (1, PARTS[0].key, 0, 160))])
    assert log.lacks(0) == (
        Lack(1, "gradients", 400, (range(160),)),
        Lack(3, "gradients", 400, (range(320, 400),)),
    )


def test_what_was_begun_in_a_step_that_has_ended_belongs_to_it() -> None:
    log = StepLog()
    log.end_step()
    log.note(0, SPEC, [(PARTS[0], (1, PARTS[0].key, 0, 0))])
    assert log.lacks(0) and not log.lacks(1)


def test_old_steps_are_forgotten() -> None:
    log = StepLog()
    for step in range(KEPT + 10):
        log.note(step, SPEC, [(PARTS[0], (1, PARTS[0].key, 0, 0))])
        log.end_step()
    assert not log.lacks(9) and log.lacks(KEPT + 9)


def test_each_step_of_a_distributed_optimizer_is_told(stepping: torch.optim.Optimizer) -> None:
    assert bps.elastic.report().steps == ()
    for _ in range(KEPT + 5):
        stepping.step()
    found = bps.elastic.report()
    assert [step.number for step in found.steps] == list(range(5, KEPT + 5))
    assert (found.under_way.number, found.size, found.rank) == (KEPT + 5, 1, 0)
    assert all(step.contributors == (0,) and not step.lacks for step in found.steps)


def test_steps_of_the_world_before_stay(stepping: torch.optim.Optimizer) -> None:
    stepping.step()
    _runtime.current().steps.note(0, SPEC, [(PARTS[0], (0, PARTS[0].key, 0, 0))])
    before = bps.elastic.report().steps
    rejoin(lambda: None)
    stepping.step()
    assert bps.elastic.report().steps[:-1] == before
    assert [(step.number, step.contributors) for step in bps.elastic.report().steps] == [(0, ()), (0, (0,))]
    assert "step 0 of world 0 (rank 0 of 1): rank 0 is in 240 of 400 bytes of 'gradients'" in str(bps.elastic.report())


def test_there_is_none_before_init() -> None:
    with pytest.raises(bps.NotInitializedError):
        bps.elastic.report()
