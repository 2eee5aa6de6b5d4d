"""All-reduce of one partition with a codec between hosts, and as it is within them.

Memory within a host is faster than any encoding, so the ranks of a host first reduce and scatter their partitions raw;
each then exchanges its slice, encoded, with the ranks of its place on the other hosts, and the host gathers the slices.
Across hosts a value is encoded twice and no rank sends more than its slice: of h hosts with r ranks each, (h - 1)/h of
1/r of the partition's payload out and in, then as much of the result. A codec's limits count hosts, not ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from byteps_like.collectives.api import CallOptions, Group
from byteps_like.collectives.coded import CodedPartition, Steps, coded_partition
from byteps_like.collectives.schedules.chunks import cut
from byteps_like.compression.codec import Floats, Trait
from byteps_like.compression.feedback import Compensation
from byteps_like.compression.registry import Coding
from byteps_like.dtypes import DType, Op

MakeGroup = Callable[[str, Sequence[int]], Group]
"""A group of some of the ranks of another (in its numbers), under a name of its own."""


class HostsPartition:
    """Over a group whose hosts have equally many ranks, more than one. One exchange at a time."""

    def __init__(self, group: Group, coding: Coding, key: int, numel: int, subgroup: MakeGroup) -> None:
        self._size = group.size
        members = _members(group)
        own = next(ranks for ranks in members if group.rank in ranks)
        place = own.index(group.rank)
        self._within = subgroup("within", own)
        across = subgroup(f"across.{place}", [ranks[place] for ranks in members])
        slices = cut(numel, len(own), key)
        self._counts = [one.numel for one in slices] + [0] * (len(own) - len(slices))
        self._slice = slices[place] if place < len(slices) else None
        self._inner: CodedPartition | None = None
        if self._slice is not None:
            self._inner = coded_partition(across, coding, self._slice.key, self._slice.numel)

    def exchange(self, x: Floats, op: Op, feedback: Compensation, options: CallOptions) -> Steps:
        """See CodedPartition.exchange. Feedback and momentum are those of the host's sum, at the rank that has it."""
        address = x.ctypes.data
        begin = self._slice.begin if self._slice is not None else x.size
        target = address + 4 * begin
        yield self._within.reduce_scatter(address, target, self._counts, DType.FLOAT32, Op.SUM, options)
        if self._slice is not None and self._inner is not None:
            own = x[self._slice.slice]
            kept = feedback.part(self._slice.slice)
            feedback.scale = 1.0
            yield from self._inner.exchange(own, Op.SUM, kept, options)
            if op is Op.AVERAGE:
                own /= self._size
        yield self._within.all_gather(target, address, self._counts, DType.FLOAT32, options)


def suits(group: Group, coding: Coding) -> bool:
    """Whether there is something to gain: several hosts, each with as many ranks, more than one, and no plain sum."""
    counts = {len(ranks) for ranks in _members(group)}
    several = len(_members(group)) > 1
    return several and len(counts) == 1 and counts != {1} and coding.trait is not Trait.DENSE


def _members(group: Group) -> list[list[int]]:
    found: dict[int, list[int]] = {}
    for rank, host in enumerate(group.hosts):
        found.setdefault(host, []).append(rank)
    return list(found.values())
