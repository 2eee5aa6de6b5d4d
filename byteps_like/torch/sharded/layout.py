"""Where each parameter lies in a sharded arena, and which rank has which share of it. Plain arithmetic, no torch."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from operator import itemgetter

UNIT = 256
"""Bytes. Shares and parameters begin at multiples of it, so that no vector register of an update is cut."""


@dataclass(frozen=True)
class ShardPiece:
    """The part of parameter `slot` that lies at elements `begin` to `end` of the arena; `start` counts within it."""

    slot: int
    start: int
    begin: int
    end: int


@dataclass(frozen=True)
class ChunkLayout:
    """Elements `begin` to `end` of the arena, reduced, updated and gathered as one; `counts[r]` are rank r's."""

    begin: int
    end: int
    counts: tuple[int, ...]

    def share(self, rank: int) -> tuple[int, int]:
        """Elements of the arena that rank `rank` updates."""
        begin = self.begin + sum(self.counts[:rank])
        return begin, begin + self.counts[rank]


class Stretches:
    """Ascending stretches of an arena, `(begin, end)` in elements, as if they lay one behind the other."""

    def __init__(self, stretches: Sequence[tuple[int, int]]) -> None:
        self.stretches = [stretch for stretch in stretches if stretch[0] < stretch[1]]
        self._places = list(accumulate((end - begin for begin, end in self.stretches), initial=0))
        self.numel = self._places[-1]

    def place(self, element: int) -> int:
        """Where an element of the arena is, which lies in one of them."""
        number = bisect_right(self.stretches, element, key=itemgetter(0)) - 1
        return self._places[number] + element - self.stretches[number][0]

    def common(self, other: Stretches) -> Stretches:
        """What lies in both."""
        found, number = [], 0
        for begin, end in self.stretches:
            while number < len(other.stretches) and other.stretches[number][1] <= begin:
                number += 1
            for low, high in islice(other.stretches, number, None):
                if low >= end:
                    break
                found.append((max(low, begin), min(high, end)))
        return Stretches(found)


@dataclass(frozen=True)
class ShardLayout:
    """`[parameter | padding] ...`, cut into chunks, each cut into one share per rank. All sizes are in elements."""

    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    total: int
    chunks: tuple[ChunkLayout, ...]

    def share(self, rank: int) -> Stretches:
        """All that rank `rank` updates."""
        return Stretches([chunk.share(rank) for chunk in self.chunks])

    def pieces(self, begin: int, end: int) -> list[ShardPiece]:
        """What of which parameters lies between elements `begin` and `end`."""
        found = []
        for slot, (offset, size) in enumerate(zip(self.offsets, self.sizes, strict=True)):
            low, high = max(begin, offset), min(end, offset + size)
            if low < high:
                found.append(ShardPiece(slot, low - offset, low, high))
        return found

    def chunks_of(self, slot: int) -> range:
        """Numbers of the chunks that parameter `slot` has elements in."""
        begin, end = self.offsets[slot], self.offsets[slot] + self.sizes[slot]
        found = [number for number, chunk in enumerate(self.chunks) if chunk.begin < end and begin < chunk.end]
        return range(found[0], found[-1] + 1) if begin < end else range(0)


def lay_out_shards(sizes: Sequence[int], itemsize: int, chunk_bytes: int, ranks: int) -> ShardLayout:
    """Parameters in their order, chunks of `chunk_bytes` (rounded down to UNIT), shares that differ by UNIT at most.

    What a chunk can't share out evenly goes to the ranks in turn, so that their sums differ by UNIT at most, too.
    """
    unit = UNIT // itemsize
    offsets, total = [], 0
    for size in sizes:
        offsets.append(total)
        total += -(-size // unit) * unit
    step = max(chunk_bytes // UNIT, 1) * unit
    chunks, turn = [], 0
    for begin in range(0, total, step):
        end = min(begin + step, total)
        each, more = divmod((end - begin) // unit, ranks)
        counts = ((each + ((rank - turn) % ranks < more)) * unit for rank in range(ranks))
        chunks.append(ChunkLayout(begin, end, tuple(counts)))
        turn += more
    return ShardLayout(tuple(sizes), tuple(offsets), total, tuple(chunks))
