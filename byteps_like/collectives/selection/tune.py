"""Measures every algorithm that a group can have, for the selector's table.

All ranks call it together. A time is the median over repetitions of the slowest rank, each begun after a barrier; the
ranks agree on it, so all have the same table in the end.
"""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from byteps_like.collectives import library
from byteps_like.collectives.api import CallOptions, CollectiveOperation, Group
from byteps_like.collectives.schedules.schedule import Kind, Layout
from byteps_like.collectives.selection.default_table import SHARED
from byteps_like.collectives.selection.measured_table import MeasuredTable, Point
from byteps_like.dtypes import DType, Op
from byteps_like.errors import InvalidArgumentError

MOST_REPEATS = 101
SIZES = tuple(1 << exponent for exponent in range(8, 27, 2))  # 256 B to 64 MiB


@dataclass(frozen=True)
class TuneOptions:
    """What to measure. Sizes are bytes of the longer of a call's two buffers, as the selector counts them."""

    kinds: tuple[Kind, ...] = tuple(kind for kind in Kind if kind is not Kind.BARRIER)
    sizes: tuple[int, ...] = SIZES
    repeats: int = 7
    """Of each algorithm at each size, at least."""
    seconds: float = 0.2
    """About how long the algorithms of one size are measured, if that takes no more than `MOST_REPEATS`."""
    slow: float = 8.0
    """An algorithm that took so many times as long as the best at one size is left out at larger ones."""


@dataclass(frozen=True)
class Timing:
    """One result: median seconds of an algorithm at a size."""

    kind: Kind
    nbytes: int
    algorithm: str
    seconds: float


def tune(
    group: Group, layout: Layout, options: TuneOptions, report: Callable[[Timing], None] = lambda _: None
) -> MeasuredTable:
    """The table of this group; blocks until all is measured. `report` is called with each result, on every rank.

    Raises what the group's operations raise.
    """
    table = MeasuredTable()
    buffers = _Buffers(group, max(options.sizes))
    for kind in options.kinds:
        names = _candidates(kind, layout)
        points = []
        for nbytes in sorted(options.sizes):
            seconds = _measure(group, buffers, kind, nbytes, names, options)
            for name, taken in seconds.items():
                report(Timing(kind, nbytes, name, taken))
            if seconds:
                points.append(Point(nbytes, seconds))
                best = min(seconds.values())
                names = [name for name in names if seconds.get(name, float("inf")) <= options.slow * best]
        table.put(layout, kind, points)
    return table


def layout_of(group: Group, host: str) -> Layout:
    """Which ranks of a group share a host, from what each calls its own; blocks until all have said it."""
    own = np.frombuffer(hashlib.blake2b(host.encode(), digest_size=8).digest(), np.uint8).copy()
    all_hosts = np.zeros((group.size, own.size), np.uint8)
    group.all_gather(own.ctypes.data, all_hosts.ctypes.data, [own.size] * group.size, DType.UINT8).wait()
    numbers: dict[bytes, int] = {}
    return Layout(tuple(numbers.setdefault(row.tobytes(), len(numbers)) for row in all_hosts))


def _candidates(kind: Kind, layout: Layout) -> list[str]:
    shared = [SHARED] if len(layout.members) == 1 < layout.size else []
    return shared + library.viable(kind, layout)


def _measure(
    group: Group, buffers: _Buffers, kind: Kind, nbytes: int, names: Sequence[str], options: TuneOptions
) -> dict[str, float]:
    """Median seconds of each algorithm that the group can have. They take turns, so that a slow moment of the machine
    does not hit one of them alone."""
    taken: dict[str, list[float]] = {name: [] for name in names}

    def turn() -> None:
        for name in list(taken):
            try:
                group.barrier(CallOptions(waits=True)).wait()
                began = time.perf_counter()
                buffers.call(kind, nbytes, CallOptions(algorithm=name, waits=True)).wait()
            except InvalidArgumentError:  # this group can't have it, on any rank
                del taken[name]
                continue
            taken[name].append(time.perf_counter() - began)

    def medians() -> list[float]:
        return _slowest(group, [statistics.median(times) for times in taken.values()])

    turn()  # makes links, programs and pages
    for times in taken.values():
        times.clear()
    for _ in range(options.repeats):
        turn()
    more = int(options.seconds / max(sum(medians()), 1e-9))  # the same on all ranks
    for _ in range(min(more, MOST_REPEATS) - options.repeats):
        turn()
    return dict(zip(taken, medians(), strict=True))


def _slowest(group: Group, seconds: Sequence[float]) -> list[float]:
    """The largest of all ranks, of each."""
    if not seconds:
        return []
    values = np.array(seconds, np.float64)
    group.all_reduce(values.ctypes.data, values.ctypes.data, values.size, DType.FLOAT64, Op.MAX).wait()
    return [float(value) for value in values]


class _Buffers:
    """Source and target for calls of any kind up to some size; float32."""

    def __init__(self, group: Group, most: int) -> None:
        count = most // 4 + group.size
        self._group = group
        self._source, self._target = np.ones(count, np.float32), np.zeros(count, np.float32)

    def call(self, kind: Kind, nbytes: int, options: CallOptions) -> CollectiveOperation:
        """Launches one call of a kind; its longer buffer has `nbytes`, rounded up to whole equal parts."""
        group, dtype = self._group, DType.FLOAT32
        source, target = self._source.ctypes.data, self._target.ctypes.data
        whole, part = max(1, nbytes // 4), max(1, -(-nbytes // 4 // group.size))
        parts = [part] * group.size
        match kind:
            case Kind.ALL_REDUCE:
                return group.all_reduce(source, target, whole, dtype, Op.SUM, options)
            case Kind.REDUCE:
                return group.reduce(source, target, whole, dtype, Op.SUM, 0, options)
            case Kind.BROADCAST:
                return group.broadcast(target, whole, dtype, 0, options)
            case Kind.REDUCE_SCATTER:
                return group.reduce_scatter(source, target, parts, dtype, Op.SUM, options)
            case Kind.ALL_GATHER:
                return group.all_gather(source, target, parts, dtype, options)
            case Kind.SCATTER:
                return group.scatter(source, target, parts, dtype, 0, options)
            case Kind.GATHER:
                return group.gather(source, target, parts, dtype, 0, options)
            case Kind.ALL_TO_ALL:
                return group.all_to_all(source, target, part, part, dtype, options)
            case Kind.BARRIER:
                return group.barrier(options)
