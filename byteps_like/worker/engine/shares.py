"""Shares of partitions: of what the ranks of a host have reduced among themselves, each moves its own. Arithmetic.

A share is a key of its own, at its partition's shard. To the servers all ranks take part in its rounds: those of its
place on each host bring it, and get its sum; the others say that they are absent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from byteps_like.wire.frame import PARTITION_KEY, SHARE_SHIFT
from byteps_like.worker.api import Declared, Partition, Share


def slice_of(numel: int, size: int, rank: int) -> range:
    """The elements that are `rank`'s of `numel`: as many for each, the last ones fewer or none."""
    share = -(-numel // size)
    begin = min(rank * share, numel)
    return range(begin, min(begin + share, numel))


@dataclass(frozen=True)
class Shared:
    """A tensor's partitions, each cut into shares; empty ones aren't there."""

    parts: Sequence[Partition]
    starts: Sequence[int]
    """Of each partition the number of its first share; one more at the end."""
    absent: frozenset[int]
    """Numbers of those that other ranks of the host move."""

    def of(self, parts: range) -> range:
        """The shares of some partitions."""
        return range(self.starts[parts.start], self.starts[parts.stop])


def shared(declared: Declared, share: Share) -> Shared:
    """What `share` makes of a tensor."""
    found: list[Partition] = []
    starts, absent = [0], set()
    itemsize = declared.spec.dtype.itemsize
    for part in declared.partitions:
        for place in range(share.count):
            own = slice_of(part.nbytes // itemsize, share.count, place)
            if not own:
                continue
            if place != share.place:
                absent.add(len(found))
            key, offset = part.key | (place + 1) << SHARE_SHIFT, part.offset + own.start * itemsize
            found.append(Partition(key, offset, len(own) * itemsize, part.server, part.shard))
        starts.append(len(found))
    return Shared(found, starts, frozenset(absent))


def part_of(declared: Declared, cut: Shared | None, key: int) -> Partition:
    """The partition of a tensor that has this key, or the share of one that `cut` has made."""
    if cut is None or key == key & PARTITION_KEY:
        return declared.partitions[key & 0xFFFF]
    return next(share for share in cut.parts if share.key == key)
