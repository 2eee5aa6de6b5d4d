"""Places what servers keep where it was in the world before, as far as that leaves all with their parts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from byteps_like.worker.api import Declared, TensorSpec
from byteps_like.worker.keeping import ShardName

NOWHERE = -1
"""In place of a slot."""


class PlacedRange(NamedTuple):
    """A range of a tensor, in bytes, and the slot that has it."""

    offset: int
    nbytes: int
    place: int


def ranges(turns: Iterable[tuple[int, int]]) -> list[PlacedRange]:
    """Of slots and bytes, one behind the other."""
    found, offset = [], 0
    for place, nbytes in turns:
        found.append(PlacedRange(offset, nbytes, place))
        offset += nbytes
    return found


@dataclass(frozen=True)
class Former:
    """Where a tensor was."""

    spec: TensorSpec
    pieces: tuple[tuple[int, int, ShardName], ...]
    """Offset, bytes and shard of each partition, in order."""

    @classmethod
    def of(cls, declared: Declared, servers: Sequence[tuple[str, ...]]) -> Former:
        """Of a world that ends, with the addresses of its servers."""
        parts = declared.partitions
        return cls(declared.spec, tuple((one.offset, one.nbytes, (servers[one.server], one.shard)) for one in parts))

    def is_of(self, spec: TensorSpec) -> bool:
        """Whether it may have been that tensor."""
        return (self.spec.nbytes, self.spec.row_bytes, self.spec.partition_bytes) == (
            spec.nbytes, spec.row_bytes, spec.partition_bytes,
        )  # fmt: skip

    def held(self, places: Mapping[ShardName, int]) -> list[PlacedRange]:
        """Its ranges, where slots are these; those of a shard that is gone are at `NOWHERE`."""
        return [PlacedRange(offset, nbytes, places.get(shard, NOWHERE)) for offset, nbytes, shard in self.pieces]


def stay(held: Sequence[PlacedRange], room: list[float], unit: int) -> tuple[list[PlacedRange], list[PlacedRange]]:
    """What stays of ranges that were `held`, and what has to move, at `NOWHERE`. Slot i has room for `room[i]` more
    bytes, less by what a range takes; about a `unit` is no matter, and nothing is cut finer than one."""
    stays, moves = [], []
    for offset, nbytes, place in merged(held):
        left = 0
        if place != NOWHERE and room[place] > 0:
            left = min(nbytes, max(1, round(room[place] / unit)) * unit)
            left = nbytes if nbytes - left < unit else left
            room[place] -= left
            stays.append(PlacedRange(offset, left, place))
        if left < nbytes:
            moves.append(PlacedRange(offset + left, nbytes - left, NOWHERE))
    return stays, moves


def merged(ranges: Iterable[PlacedRange]) -> list[PlacedRange]:
    """In order, neighbours of one slot as one."""
    found: list[PlacedRange] = []
    for one in sorted(ranges):
        if found and found[-1].place == one.place:
            before = found.pop()
            one = PlacedRange(before.offset, before.nbytes + one.nbytes, one.place)
        found.append(one)
    return found


def dealt(moves: Sequence[PlacedRange], shares: Sequence[int], unit: int) -> Iterator[PlacedRange]:
    """What has to move, to slots that get about so many bytes each. Nothing is cut finer than a `unit`."""
    wanted = [(place, share) for place, share in enumerate(shares) if share]
    place, turn, owed = NOWHERE, 0, 0
    for offset, nbytes, _ in moves:
        done = 0
        while done < nbytes:
            if owed < unit and turn < len(wanted):
                place, owed, turn = wanted[turn][0], owed + wanted[turn][1], turn + 1
            rest = nbytes - done
            take = rest if turn == len(wanted) or rest - max(owed, 0) < unit else max(owed, 0) // unit * unit
            if take:
                yield PlacedRange(offset + done, take, place)
            done += take
            owed -= take
