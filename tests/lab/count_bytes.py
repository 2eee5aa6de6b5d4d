"""A worker of test_wire_bytes: one push_pull, and what it moved by its own counters and by its interface's."""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

import numpy as np

from byteps_like.config import Config
from byteps_like.dtypes import DType, Op
from byteps_like.worker.api import TensorSpec, Worker
from byteps_like.worker.session import connect


def counters(worker: Worker) -> dict[str, int]:
    statistics = Path("/sys/class/net/eth0/statistics")
    wire = {f"wire_{way}": int((statistics / f"{way}_bytes").read_text()) for way in ("tx", "rx")}
    return {**worker.stats(), **wire}


def main(folder: Path, nbytes: int) -> None:
    worker = connect(Config.from_env())
    memory = worker.allocate(nbytes)
    values = np.frombuffer((ctypes.c_byte * nbytes).from_address(memory.address), np.float32)
    values[:] = np.arange(values.size) % 1021 + worker.rank
    [declared] = worker.declare([TensorSpec("bytes", DType.FLOAT32, (values.size,))])
    worker.barrier(30)
    before = counters(worker)
    worker.push_pull(declared, memory.address, Op.SUM).wait(60)
    after = counters(worker)
    moved = {name: after[name] - before[name] for name in after}
    expected = (np.arange(values.size) % 1021) * worker.size + sum(range(worker.size))
    moved["wrong"] = int((values != expected).sum())
    moved["partitions"] = len(declared.partitions)
    (folder / f"rank{worker.rank}.json").write_text(json.dumps(moved))
    worker.barrier(30)
    worker.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
