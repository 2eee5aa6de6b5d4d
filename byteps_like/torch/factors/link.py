"""What the link of this job and this processor do, measured once: for the choice between factors and matrix."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import torch

from byteps_like.collectives.api import CallOptions, Group
from byteps_like.dtypes import DType, Op
from byteps_like.torch.factors.choice import FactorLink
from byteps_like.torch.job.routes import Request, Route
from byteps_like.worker.api import TensorSpec

SMALL, LARGE = 16 << 10, 1 << 20
_REPEATS = 3
_ROWS, _SIDE = 64, 512  # of a matrix product


def measured(route: Route, lane: Group, label: str) -> FactorLink:
    """The slowest rank's link, the same on all ranks. Blocks: some three times the time of an all-reduce of 1 MiB."""
    size = lane.size
    dense = [_best(functools.partial(_reduce, route, label, nbytes)) for nbytes in (SMALL, LARGE)]
    gathered = [_best(functools.partial(_gather, lane, nbytes)) for nbytes in (SMALL, LARGE)]
    pair = torch.ones(_ROWS, _SIDE, device="cpu")
    product = _best(lambda: pair.T @ pair) / (_ROWS * _SIDE * _SIDE)
    slope = (dense[1] - dense[0]) / (LARGE - SMALL)
    gather_slope = (gathered[1] - gathered[0]) / ((LARGE - SMALL) * (size - 1) / size) if size > 1 else 0.0
    own = [max(dense[0] - slope * SMALL, 0.0), max(slope, 0.0), max(gathered[0], 0.0), max(gather_slope, 0.0), product]
    values = torch.tensor(own, dtype=torch.float64, device="cpu")
    lane.all_reduce(values.data_ptr(), values.data_ptr(), len(own), DType.FLOAT64, Op.MAX).wait()
    return FactorLink(*values.tolist())


def _best(run: Callable[[], object]) -> float:
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def _reduce(route: Route, label: str, nbytes: int) -> None:
    buffer = torch.zeros(nbytes // 4, device="cpu")
    (declared,) = route.declare([TensorSpec(f"{label}.measured.{route.name}.{nbytes}", DType.FLOAT32, (len(buffer),))])
    route.push_pull(declared, buffer.data_ptr(), Op.SUM, Request(priority=0)).wait()


def _gather(lane: Group, nbytes: int) -> None:
    """`nbytes` in all, of which each rank has a part."""
    each = nbytes // 4 // lane.size
    buffer = torch.zeros(each * lane.size, device="cpu")
    source = buffer[each * lane.rank :].data_ptr()
    lane.all_gather(source, buffer.data_ptr(), [each] * lane.size, DType.FLOAT32, CallOptions()).wait()
