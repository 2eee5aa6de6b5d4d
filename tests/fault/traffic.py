"""Random calls of collectives whose results are known in closed form, for worlds of threads and of processes.

A call is drawn from a seed, alike on every rank. Element i of group rank r's source is `i % 97 + 1000 r`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from byteps_like.collectives import library
from byteps_like.collectives.api import CallOptions
from byteps_like.collectives.schedules.schedule import Kind, Layout
from byteps_like.collectives.selection.default_table import SHARED
from byteps_like.dtypes import DType, Op

TIMEOUT = 20.0
KINDS = tuple(Kind)
SMALL = (0, 1, 2, 3, 7, 100, 1000)
AROUND = (1 << 14, 1 << 15, 1 << 18)  # elements of four bytes: 64 KiB, 128 KiB, 1 MiB
Started = tuple[Any, Callable[[], None]]
"""The operation, and what checks its result once it has ended."""


@dataclass(frozen=True)
class Call:
    """One call as all ranks of the group make it; `counts` by rank, their first for kinds with one count."""

    kind: Kind
    algorithm: str
    counts: tuple[int, ...]
    root: int
    in_place: bool


def algorithms(kind: Kind, layout: Layout, *, shared: bool) -> list[str]:
    """What can be forced for this kind there."""
    names = [name for name in library.TABLE[kind] if name != SHARED and not library.why_unavailable(kind, name, layout)]
    return [*names, *([SHARED] if shared and len(layout.members) == 1 and layout.size > 1 else [])]


def draw(
    dice: random.Random, layout: Layout, *, shared: bool = False, large: bool = True, kinds: Sequence[Kind] = KINDS
) -> Call:
    """A random call."""
    kind = dice.choice(list(kinds))
    names = ["", *algorithms(kind, layout, shared=shared)]
    sizes = [*SMALL, *(near + dice.choice((-1, 0, 0, 1)) for near in AROUND if large)]
    counts = [dice.choice(sizes) for _ in range(layout.size)]
    if kind is Kind.ALL_TO_ALL or dice.random() < 0.3:
        counts = counts[:1] * layout.size
    in_place = dice.random() < 0.3 and kind in (Kind.ALL_REDUCE, Kind.REDUCE)
    return Call(kind, dice.choice(names), tuple(counts), dice.randrange(layout.size), in_place)


def _source(rank: int, count: int) -> np.ndarray:
    return (np.arange(count, dtype=np.int32) % 97) + np.int32(1000 * rank)


def start(group: Any, call: Call, **options: Any) -> Started:
    """Makes the call; buffers live until the check has run."""
    size, rank, counts, root = group.size, group.rank, list(call.counts), call.root
    given = CallOptions(algorithm=call.algorithm, **{"timeout": TIMEOUT, **options})
    total, first = sum(counts), sum(counts[:rank])
    sums = lambda count: _source(0, count) * np.int32(size) + np.int32(500 * size * (size - 1))  # noqa: E731
    if call.kind is Kind.BARRIER:
        return group.barrier(given), lambda: None
    if call.kind is Kind.ALL_TO_ALL:
        source = _source(rank, counts[0] * size)
        parts = [_source(sender, counts[0] * size)[rank * counts[0] : (rank + 1) * counts[0]] for sender in range(size)]
        return _checked(np.concatenate(parts), source, lambda target: group.all_to_all(
            source.ctypes.data, target, counts[0], counts[0], DType.INT32, given))  # fmt: skip
    if call.kind is Kind.ALL_GATHER or call.kind is Kind.GATHER:
        source = _source(rank, counts[rank])
        wanted = np.concatenate([_source(sender, counts[sender]) for sender in range(size)])
        if call.kind is Kind.ALL_GATHER:
            return _checked(wanted, source, lambda target: group.all_gather(
                source.ctypes.data, target, counts, DType.INT32, given))  # fmt: skip
        return _checked(wanted if rank == root else wanted[:0], source, lambda target: group.gather(
            source.ctypes.data, target, counts, DType.INT32, root, given))  # fmt: skip
    if call.kind is Kind.SCATTER:
        source = _source(rank, total if rank == root else 0)
        return _checked(_source(root, total)[first : first + counts[rank]], source, lambda target: group.scatter(
            source.ctypes.data, target, counts, DType.INT32, root, given))  # fmt: skip
    if call.kind is Kind.REDUCE_SCATTER:
        source = _source(rank, total)
        return _checked(sums(total)[first : first + counts[rank]], source, lambda target: group.reduce_scatter(
            source.ctypes.data, target, counts, DType.INT32, Op.SUM, given))  # fmt: skip
    return _one_count(group, call, counts[0], sums, given)


def _one_count(group: Any, call: Call, count: int, sums: Callable[[int], np.ndarray], given: CallOptions) -> Started:
    source = _source(group.rank, count)
    if call.kind is Kind.BROADCAST:
        operation = group.broadcast(source.ctypes.data, count, DType.INT32, call.root, given)
        return operation, lambda: np.testing.assert_array_equal(source, _source(call.root, count))
    gets = call.kind is Kind.ALL_REDUCE or group.rank == call.root
    wanted = sums(count) if gets else _source(group.rank, 0)

    def launch(target: int) -> Any:
        if call.kind is Kind.ALL_REDUCE:
            return group.all_reduce(source.ctypes.data, target, count, DType.INT32, Op.SUM, given)
        return group.reduce(source.ctypes.data, target, count, DType.INT32, Op.SUM, call.root, given)

    if not call.in_place:
        return _checked(wanted, source, launch)
    operation = launch(source.ctypes.data)
    return operation, lambda: np.testing.assert_array_equal(source[: wanted.size], wanted)


def _checked(wanted: np.ndarray, source: np.ndarray, launch: Callable[[int], Any]) -> Started:
    target = np.full(max(wanted.size, 1), -1, np.int32)
    operation = launch(target.ctypes.data)

    def check() -> None:
        np.testing.assert_array_equal(target[: wanted.size], wanted)
        assert source is not None  # kept until here

    return operation, check
