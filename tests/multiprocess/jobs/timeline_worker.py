"""One worker of test_timeline_job.py, without torch: push_pulls of a tensor of three partitions, and a ring."""

from __future__ import annotations

import ctypes

import numpy as np

from byteps_like.collectives.api import CallOptions
from byteps_like.config import Config
from byteps_like.dtypes import DType, Op
from byteps_like.worker.api import TensorSpec
from byteps_like.worker.session import connect

ROUNDS, CALLS, COUNT = 6, 4, 3 * 1024


def main() -> None:
    worker = connect(Config.from_env())
    (declared,) = worker.declare([TensorSpec("weights", DType.FLOAT32, (COUNT,))])
    memory = worker.allocate(4 * COUNT)
    values = np.frombuffer((ctypes.c_char * memory.nbytes).from_address(memory.address), np.float32)
    for _ in range(ROUNDS):
        values[:] = worker.rank + 1
        worker.push_pull(declared, memory.address, Op.SUM, priority=7).wait(20)
        assert (values == sum(range(1, worker.size + 1))).all()
    group = worker.group("ring")
    vector = np.full(COUNT, float(worker.rank), np.float32)
    for _ in range(CALLS):
        options = CallOptions(algorithm="ring", timeout=20)
        group.all_reduce(vector.ctypes.data, vector.ctypes.data, COUNT, DType.FLOAT32, Op.MAX, options).wait()
    assert (vector == worker.size - 1).all()
    worker.barrier(20)
    worker.close()


if __name__ == "__main__":
    main()
