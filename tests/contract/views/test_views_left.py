"""A worker that has left its world is freed with the last reference to it, and with it its threads and memory."""

from __future__ import annotations

import gc
import weakref

import numpy as np

from byteps_like.dtypes import DType, Op
from byteps_like.worker.api import TensorSpec, Worker
from tests.contract.mixed_job import DEADLINE, MixedJob, native_worker

RANKS = 2


def use(worker: Worker) -> None:
    (declared,) = worker.declare([TensorSpec("x", DType.FLOAT32, (1000,))])
    array = np.ones(1000, np.float32)
    worker.push_pull(declared, array.ctypes.data, Op.SUM).wait(DEADLINE)
    assert (array == RANKS).all()


def test_nothing_keeps_a_worker_that_has_left() -> None:
    job = MixedJob([native_worker] * RANKS)
    try:
        job.everybody(use)
        left = [weakref.ref(worker) for worker in job.workers]
        for worker in job.workers:
            worker.close()
        gc.collect()  # of what the test's own threads and the job were
        gc.disable()
        del worker
        job.workers.clear()
        assert [one() for one in left] == [None] * RANKS, "a worker is in a cycle, or somebody is still told of its job"
    finally:
        gc.enable()
        job.close()
