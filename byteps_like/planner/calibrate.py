"""Measures what a prediction depends on, by the runtime itself: run on every worker of a job with a server.

All times are medians of push_pulls that all workers make together. Rank 0 gets the result.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from byteps_like.dtypes import DType, Op
from byteps_like.errors import InvalidArgumentError
from byteps_like.planner.cluster import ClusterCosts
from byteps_like.worker.api import Declared, TensorSpec, Worker

SMALL, LARGE = 1 << 10, 64 << 20
FEW, MANY = 9, 60
SECTION = 128 << 10


@dataclass(frozen=True)
class Calibration:
    """`rate`: payload bytes per second that a worker's line carries each way, as far as the servers keep up."""

    rate: float
    costs: ClusterCosts

    def save(self, path: Path) -> None:
        """Writes JSON."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Calibration:
        """What `save` wrote. Raises InvalidArgumentError, naming the file, for anything else."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return cls(float(content["rate"]), ClusterCosts(**content["costs"]))
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise InvalidArgumentError(f"{path} is not a calibration file: {error!r}") from error


class _Tensor:
    """Zeros, pushed and pulled again and again."""

    def __init__(self, worker: Worker, nbytes: int) -> None:
        spec = TensorSpec(f"calibrate.{nbytes}", DType.UINT8, (nbytes,))
        self._worker = worker
        self.declared: Declared = worker.declare([spec])[0]
        self._values = np.zeros(nbytes, np.uint8)  # ordinary memory: it goes over the link even to the same host

    def push_pull(self) -> float:
        """Seconds until the call returned; it is over when this returns."""
        start = time.perf_counter()
        handle = self._worker.push_pull(self.declared, self._values.ctypes.data, Op.SUM)
        called = time.perf_counter() - start
        handle.wait()
        return called


def calibrate(worker: Worker) -> Calibration:
    """Takes some seconds; all workers must call it. Raises InvalidArgumentError in a job without servers."""
    if worker.route != "server":
        raise InvalidArgumentError("calibration needs a job with servers: byteps-like run -n 2 -s 1 -- ...")
    small, large = _Tensor(worker, SMALL), _Tensor(worker, LARGE)
    trip = _median(small.push_pull, MANY)
    whole = _median(large.push_pull, FEW)
    calls = [large.push_pull() for _ in range(FEW)]
    parts = large.declared.partitions
    servers = len({part.server for part in parts})
    shards = len({(part.server, part.shard) for part in parts})
    costs = ClusterCosts(
        latency=trip / 2,
        frame=_frame_seconds(),
        launch=statistics.median(calls) / len(parts),
        # A server is no slower than what went through it: the line may have been what limited it.
        sum_rate=max(worker.size * LARGE / whole / shards, 1.0),
        memory_rate=_copy_rate(),
    )
    return Calibration(max(1.0, worker.size / servers) * LARGE / whole, costs)


def _median(action: Callable[[], Any], times: int) -> float:
    found = []
    for _ in range(times):
        start = time.perf_counter()
        action()
        found.append(time.perf_counter() - start)
    return statistics.median(found[1:])


def _copy_rate() -> float:
    source, target = np.ones(LARGE, np.uint8), np.ones(LARGE, np.uint8)
    return LARGE / _median(lambda: np.copyto(target, source), FEW)


def _frame_seconds() -> float:
    """Of the processor for one segment: the sum of a segment's bytes at the rate of the kernels."""
    from byteps_like._core import kernels

    first, second = np.zeros(SECTION, np.uint8), np.zeros(SECTION, np.uint8)
    whole = _median(lambda: kernels.reduce(Op.SUM, DType.UINT8, first, second), MANY)
    tiny = np.zeros(64, np.uint8)
    least = _median(lambda: kernels.reduce(Op.SUM, DType.UINT8, tiny, tiny), MANY)
    return min(whole, least)
