"""Where each gradient lies in its arena. Plain arithmetic: no torch, no worker."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector register."""

FLAGS = 2
"""Control elements of each gradient, and"""
CONTROLS = 2
"""of the arena as a whole. See Arena."""


@dataclass(frozen=True)
class ArenaLayout:
    """Offsets of the gradients, in elements, and the arena's total. All sizes here are in elements.

    `[gradient | padding] ... | control`: each gradient starts at a multiple of ALIGNMENT bytes. The control elements
    at the tail are FLAGS times one per gradient, in the order of the parameters, and CONTROLS more.
    """

    offsets: tuple[int, ...]
    tail: int
    total: int


def lay_out(sizes: Sequence[int], order: Sequence[int], itemsize: int) -> ArenaLayout:
    """Places gradient `order[0]` first, then `order[1]`, ...; the total doesn't depend on the order."""
    step = ALIGNMENT // itemsize
    offsets = [0] * len(sizes)
    cursor = 0
    for index in order:
        offsets[index] = cursor
        cursor += -(-sizes[index] // step) * step
    control = -(-(FLAGS * len(sizes) + CONTROLS) // step) * step
    return ArenaLayout(tuple(offsets), cursor, cursor + control)


FINEST = 1 << 14
"""Bytes of the finest piece, at least: below, a message costs more than its bytes."""


def pieces(total: int, itemsize: int) -> list[int]:
    """Cuts an arena of `total` elements into tensors that are declared one by one, finer and finer towards its end.

    There lie the layers nearest to the input, which are ready last and which a forward that doesn't wait for the others
    waits for first: the smaller a partition, the sooner it is there, the more so as all workers send it to one server
    at once. The last eighth to quarter is halved and halved again, down to a 512th; partitions never span pieces.
    """
    step = ALIGNMENT // itemsize
    finest = max(FINEST // itemsize, total // 512 // step * step)
    found, end = [finest], finest
    while end < total // 8:
        found.insert(0, end)
        end += end
    return [total - end, *found] if end <= total // 4 else [total]


def partitions_of(starts: Sequence[int], begin: int, end: int) -> range:
    """Which partitions the bytes `begin` to `end` lie in; `starts` are the partitions' offsets, ascending."""
    if begin >= end:
        return range(0)
    return range(bisect_right(starts, begin) - 1, bisect_right(starts, end - 1))


def runs(parts: Sequence[int]) -> list[range]:
    """Ascending numbers as ranges of neighbours: 0 1 2 5 6 gives 0..2 and 5..6."""
    found: list[range] = []
    for part in parts:
        if found and found[-1].stop == part:
            found[-1] = range(found[-1].start, part + 1)
        else:
            found.append(range(part, part + 1))
    return found
