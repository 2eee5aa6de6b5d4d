"""Places what servers keep where it was in the world before, as far as that leaves all with their parts. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from byteps_like.worker.api import Declared, TensorSpec
from byteps_like.worker.keeping import ShardName


class PlacedRange(NamedTuple):
    """A range of a tensor, in bytes, and the slot that has it."""

    offset: int
    nbytes: int
    place: int


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

    def held(self, places: Mapping[ShardName, int]) -> list[tuple[int, int, int | None]]:
        """Offset, bytes and slot of each piece, where slots are these; None: that shard is gone."""
        return [(offset, nbytes, places.get(shard)) for offset, nbytes, shard in self.pieces]


def stay(
    held: Sequence[tuple[int, int, int | None]], room: list[float], unit: int
) -> tuple[list[PlacedRange], list[PlacedRange]]:
    """What stays of pieces that were `held`, and what has to move, which has the slot -1. Slot i has room for `room[i]`
    more bytes, which becomes what is left of it, and at most a `unit` beyond; nothing is cut finer than that."""
    stays, moves = [], []
    for offset, nbytes, place in held:
        left = 0
        if place is not None and room[place] > 0:
            left = min(nbytes, -(-int(room[place]) // unit) * unit)
            left = nbytes if nbytes - left < unit else left
            room[place] -= left
            stays.append(PlacedRange(offset, left, place))
        if left < nbytes:
            moves.append(PlacedRange(offset + left, nbytes - left, -1))
    return [one for one in stays if one.nbytes], moves


def dealt(moves: Sequence[PlacedRange], shares: Sequence[int], largest: int) -> Iterator[PlacedRange]:
    """What has to move, to slots that get so many bytes each, in pieces of at most `largest`."""
    wanted = [[place, share] for place, share in enumerate(shares) if share]
    for offset, nbytes, _ in moves:
        done = 0
        while done < nbytes:
            place, share = wanted[0]
            take = min(nbytes - done, share, largest)
            yield PlacedRange(offset + done, take, place)
            done += take
            wanted[0][1] -= take
            if not wanted[0][1]:
                del wanted[0]
