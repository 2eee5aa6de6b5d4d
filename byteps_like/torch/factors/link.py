"""What the link of this job and this processor do, measured once: for the choice between factors and matrix."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import torch

from byteps_like.collectives.api import CallOptions, Group
from byteps_like.dtypes import DType, Op
from byteps_like.torch.device.tensors import tensor_over
from byteps_like.torch.factors.choice import FactorLink
from byteps_like.torch.job.routes import Request, Route
from byteps_like.worker.api import TensorSpec

SMALL, LARGE = 16 << 10, 1 << 20
_REPEATS = 3
_ROWS, _SIDE = 64, 512  # of a matrix product


class FactorLinks:
    """What is known of each route, and each codec of matrices on it. `wanted`: True leaves the choice to the sizes, so
    nothing is measured."""

    def __init__(self, wanted: bool | str, lane: Group, label: str) -> None:
        self._measures, self._lane, self._label = wanted == "auto", lane, label
        self._known: dict[tuple[str, str], FactorLink] = {}

    def knows(self, route: Route, codec: str) -> bool:
        """Whether `of` can be asked."""
        return (route.name, codec) in self._known

    def of(self, route: Route, codec: str) -> FactorLink:
        """The slowest rank's link, for matrices that `codec` encodes."""
        return self._known[route.name, codec]

    def measure(self, route: Route, codec: str) -> None:
        """Blocks, the first time: on all ranks alike, between rounds."""
        if not self.knows(route, codec):
            link = measured(route, self._lane, self._label, codec) if self._measures else FactorLink()
            self._known[route.name, codec] = link


def measured(route: Route, lane: Group, label: str, codec: str = "") -> FactorLink:
    """The slowest rank's link, the same on all ranks, for matrices that `codec` encodes. Blocks: some three times the
    time of an all-reduce of 1 MiB."""
    size = lane.size
    prefix = f"{label}.measured.{route.name}.{codec or 'raw'}"
    dense = [_dense(route, f"{prefix}.{nbytes}", nbytes, codec) for nbytes in (SMALL, LARGE)]
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


def _dense(route: Route, name: str, nbytes: int, codec: str) -> float:
    """Seconds of a reduction under `name`, of which nothing is left."""
    (declared,) = route.declare([TensorSpec(name, DType.FLOAT32, (nbytes // 4,), codec=codec)])
    buffer = tensor_over(route.worker.allocate(nbytes), torch.float32).zero_()
    try:
        return _best(lambda: route.push_pull(declared, buffer.data_ptr(), Op.SUM, Request(priority=0)).wait())
    finally:
        route.retire(name)


def _gather(lane: Group, nbytes: int) -> None:
    """`nbytes` in all, of which each rank has a part."""
    each = nbytes // 4 // lane.size
    buffer = torch.zeros(each * lane.size, device="cpu")
    source = buffer[each * lane.rank :].data_ptr()
    lane.all_gather(source, buffer.data_ptr(), [each] * lane.size, DType.FLOAT32, CallOptions()).wait()
