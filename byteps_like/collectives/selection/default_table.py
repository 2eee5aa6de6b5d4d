"""Which algorithm when nothing was measured: rules in order, of which the first that fits counts.

Set after `python -m bench.collectives.selector` on labs of 4 hosts x 1, 2 x 4 and 4 x 4 ranks at 1 Gb/s (on two cores:
a tenth is noise); where that says nothing, by supposing that a message costs as much as 10 KB on the wire.
`byteps-like tune collectives` measures the cluster at hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from byteps_like.collectives.schedules.schedule import Kind, Layout

SHARED = "shared"
"""Not a schedule: the native collectives in memory that all ranks of one host share."""
KIB, MIB = 1 << 10, 1 << 20


class LayoutShape(StrEnum):
    """What a layout is like."""

    HOST = "one host"
    FLAT = "one rank on each host"
    GRID = "equal numbers of ranks on several hosts"
    UNEVEN = "different numbers of ranks on several hosts"


def shape_of(layout: Layout) -> LayoutShape:
    """The shape of a layout; a world of one is one host."""
    sizes = {len(ranks) for ranks in layout.members}
    if len(layout.members) == 1:
        return LayoutShape.HOST
    if sizes == {1}:
        return LayoutShape.FLAT
    return LayoutShape.GRID if len(sizes) == 1 else LayoutShape.UNEVEN


@dataclass(frozen=True)
class Rule:
    """Take `algorithm` for calls of at most `up_to` bytes and `ranks` ranks (None: any number) on these shapes."""

    algorithm: str
    up_to: int | None = None
    ranks: int | None = None
    shapes: tuple[LayoutShape, ...] = tuple(LayoutShape)
    segment_bytes: int = 128 * KIB

    def fits(self, nbytes: int, size: int, shape: LayoutShape) -> bool:
        """Whether it is about such a call."""
        small_enough = self.up_to is None or nbytes <= self.up_to
        return small_enough and (self.ranks is None or size <= self.ranks) and shape in self.shapes


_LEVELS = (LayoutShape.GRID, LayoutShape.UNEVEN)

RULES: dict[Kind, tuple[Rule, ...]] = {
    Kind.ALL_REDUCE: (
        Rule("recursive_doubling", up_to=16 * KIB),
        Rule("direct", up_to=256 * KIB, ranks=8, shapes=(LayoutShape.HOST,)),
        Rule("double_tree", up_to=128 * KIB, shapes=_LEVELS),
        Rule("halving_doubling", up_to=128 * KIB),
        Rule("hierarchical", shapes=_LEVELS, segment_bytes=256 * KIB),
        Rule("ring", segment_bytes=256 * KIB),
    ),
    Kind.REDUCE_SCATTER: (
        Rule("direct", up_to=256 * KIB, ranks=8, shapes=(LayoutShape.HOST,)),
        Rule("two_level", shapes=_LEVELS, segment_bytes=256 * KIB),
        Rule("halving_doubling", up_to=128 * KIB),
        Rule("ring", segment_bytes=256 * KIB),
    ),
    Kind.ALL_GATHER: (
        Rule("direct", up_to=32 * KIB, ranks=8, shapes=(LayoutShape.HOST,)),
        Rule("recursive_doubling", up_to=64 * KIB),
        Rule("two_level", shapes=_LEVELS, segment_bytes=256 * KIB),
        Rule("recursive_doubling", up_to=128 * KIB),
        Rule("ring", segment_bytes=256 * KIB),
    ),
    Kind.BROADCAST: (
        Rule("binomial", up_to=32 * KIB),
        Rule("binomial", up_to=4 * MIB, shapes=_LEVELS),
        Rule("scatter_all_gather", ranks=16, shapes=(LayoutShape.HOST,)),
        Rule("scatter_all_gather", up_to=512 * KIB, ranks=16, shapes=(LayoutShape.FLAT,)),
        Rule("chain", segment_bytes=64 * KIB),
    ),
    Kind.REDUCE: (
        Rule("binomial", up_to=32 * KIB),
        Rule("scatter_all_gather", ranks=16, shapes=(LayoutShape.HOST, LayoutShape.FLAT)),
        Rule("chain", segment_bytes=64 * KIB),
    ),
    Kind.SCATTER: (Rule("direct", ranks=8), Rule("binomial", up_to=64 * KIB), Rule("direct", segment_bytes=256 * KIB)),
    Kind.GATHER: (Rule("direct", ranks=8), Rule("binomial", up_to=64 * KIB), Rule("direct", segment_bytes=256 * KIB)),
    Kind.BARRIER: (Rule("dissemination"),),
    Kind.ALL_TO_ALL: (
        Rule("2dh", up_to=64 * KIB, shapes=(LayoutShape.GRID,)),
        Rule("two_level", shapes=(LayoutShape.GRID,)),
        Rule("two_level", up_to=256 * KIB, shapes=(LayoutShape.UNEVEN,)),
        Rule("direct", ranks=8, shapes=(LayoutShape.HOST,)),
        Rule("pairwise", ranks=8),
        Rule("bruck", up_to=16 * KIB),
        Rule("pairwise"),
    ),
}
"""Kind -> rules."""
