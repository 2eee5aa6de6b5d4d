"""Calls of groups whose ranks share one host: made in shared memory by the native core, without a schedule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import byteps_like._core as _core
from byteps_like.collectives.api import Addresses, Terms
from byteps_like.collectives.planning.shape import CallShape, first_address
from byteps_like.collectives.schedules.schedule import Kind
from byteps_like.dtypes import Op

_CODES = {
    Kind.ALL_REDUCE: 0, Kind.REDUCE_SCATTER: 1, Kind.ALL_GATHER: 2, Kind.BROADCAST: 3, Kind.REDUCE: 4,
    Kind.SCATTER: 5, Kind.GATHER: 6, Kind.ALL_TO_ALL: 7, Kind.BARRIER: 8,
}  # fmt: skip
"""Mirrors HostKind of collectives/host/host.h."""
_ROOTED_SOURCE = (Kind.BROADCAST, Kind.SCATTER)
_ROOTED_TARGET = (Kind.REDUCE, Kind.GATHER)
Chunks = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class SharedPlan:
    """One shape of call. `native`: a `_core.HostPlan`; `run`: its own, `cancel`: its group's; see planning.Plan."""

    native: Any
    run: Callable[[int, int, float], tuple[int, str] | None]
    cancel: Callable[[Any, int, str], None]
    staged: int = 0

    def launch(self, _call: int, source: Addresses, target: Addresses, terms: Terms) -> Any:
        """See planning.Plan.launch. The core counts the calls of a host group by itself."""
        return self.native.launch(first_address(source), first_address(target), terms[0])


def shared_plan(host: Any, shape: CallShape, rank: int, source: Addresses, target: Addresses) -> SharedPlan:
    """The plan of `shape` on group rank `rank` of a `_core.HostGroup`."""
    kind, itemsize = shape.kind, shape.dtype.itemsize
    long_input = kind in (Kind.REDUCE_SCATTER, Kind.SCATTER, Kind.ALL_TO_ALL)
    long_output = kind in (Kind.ALL_GATHER, Kind.GATHER, Kind.ALL_TO_ALL)
    received = shape.received if kind is Kind.ALL_TO_ALL else shape.counts
    own = shape.counts[rank] if len(shape.counts) > 1 else shape.counts[0]
    # What comes would lie where other parts are still to be read.
    staged = kind is Kind.ALL_TO_ALL and shape.in_place and not shape.uniform
    at_root = rank == shape.root
    reads = kind is not Kind.BARRIER and (at_root or kind not in _ROOTED_SOURCE)
    writes = kind is not Kind.BARRIER and (at_root or kind not in _ROOTED_TARGET)
    native = _core.HostPlan(
        host, _CODES[kind], int(shape.dtype), int(Op.SUM if shape.op is None else shape.op), shape.divisor, shape.root,
        0 if kind is Kind.BARRIER else own * itemsize, reads, writes,
        _chunks(shape.counts, itemsize, 0 if staged else source) if long_input else [],
        _chunks(received, itemsize, target) if long_output else [],
    )  # fmt: skip
    return SharedPlan(native, native.run, host.cancel, shape.nbytes if staged else 0)


def _chunks(counts: Sequence[int], itemsize: int, where: Addresses) -> Chunks:
    """Offsets from the first address, and bytes, of each rank's part."""
    sizes = [count * itemsize for count in counts]
    if isinstance(where, int):
        return list(zip([0, *accumulate(sizes)], sizes, strict=False))
    first = first_address(where)
    return [(address - first, size) for address, size in zip(where, sizes, strict=True)]
