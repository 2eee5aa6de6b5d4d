"""Which algorithms there are: one row for each, and the schedules made from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from byteps_like.collectives.algorithms import (
    binomial,
    bruck,
    chain,
    direct,
    dissemination,
    double_tree,
    halving_doubling,
    hierarchical,
    multi_ring,
    pairwise,
    recursive_doubling,
    ring,
    scatter_all_gather,
    two_dimensional,
    two_level,
    two_level_all_to_all,
)
from byteps_like.collectives.schedules.builder import Cost, Task
from byteps_like.collectives.schedules.schedule import Kind, Layout, RankSchedule
from byteps_like.errors import InvalidArgumentError


def _always(_: Task) -> str:
    return ""


@dataclass(frozen=True)
class Algorithm:
    """A row: how to make one rank's schedule, what it costs, and why it can't be had ("" if it can)."""

    kind: Kind
    name: str
    build: Callable[[Task], RankSchedule]
    cost: Callable[[Task], Cost]
    why_unavailable: Callable[[Task], str] = _always
    relays: bool = False
    """An all-to-all whose ranks forward blocks of others: each must know the sizes of blocks that aren't its own."""
    runs: bool = False
    """It sends or receives several sections of input or output as one run: they must lie one behind the other."""


_K = Kind
_ROWS = (
    Algorithm(_K.ALL_REDUCE, "ring", ring.all_reduce, ring.all_reduce_cost),
    Algorithm(_K.ALL_REDUCE, "recursive_doubling", recursive_doubling.all_reduce, recursive_doubling.all_reduce_cost),
    Algorithm(_K.ALL_REDUCE, "halving_doubling", halving_doubling.all_reduce, halving_doubling.all_reduce_cost),
    Algorithm(_K.ALL_REDUCE, "double_tree", double_tree.all_reduce, double_tree.all_reduce_cost),
    Algorithm(_K.ALL_REDUCE, "direct", direct.all_reduce, direct.all_reduce_cost),
    Algorithm(
        _K.ALL_REDUCE,
        "hierarchical",
        hierarchical.all_reduce,
        hierarchical.all_reduce_cost,
        hierarchical.why_unavailable,
    ),
    Algorithm(
        _K.ALL_REDUCE, "multi_ring", multi_ring.all_reduce, multi_ring.all_reduce_cost, multi_ring.why_unavailable
    ),
    Algorithm(_K.REDUCE_SCATTER, "ring", ring.reduce_scatter, ring.around_cost),
    Algorithm(
        _K.REDUCE_SCATTER,
        "halving_doubling",
        halving_doubling.reduce_scatter,
        halving_doubling.reduce_scatter_cost,
        runs=True,
    ),
    Algorithm(_K.REDUCE_SCATTER, "direct", direct.reduce_scatter, direct.to_each_cost),
    Algorithm(
        _K.REDUCE_SCATTER,
        "two_level",
        two_level.reduce_scatter,
        two_level.reduce_scatter_cost,
        two_level.why_unavailable,
    ),
    Algorithm(_K.ALL_GATHER, "ring", ring.all_gather, ring.around_cost),
    Algorithm(
        _K.ALL_GATHER, "recursive_doubling", halving_doubling.all_gather, halving_doubling.all_gather_cost, runs=True
    ),
    Algorithm(_K.ALL_GATHER, "bruck", bruck.all_gather, bruck.all_gather_cost),
    Algorithm(_K.ALL_GATHER, "direct", direct.all_gather, direct.to_each_cost),
    Algorithm(_K.ALL_GATHER, "two_level", two_level.all_gather, two_level.all_gather_cost, two_level.why_unavailable),
    Algorithm(_K.BROADCAST, "binomial", binomial.broadcast, binomial.broadcast_cost),
    Algorithm(_K.BROADCAST, "chain", chain.broadcast, chain.chain_cost),
    Algorithm(_K.BROADCAST, "scatter_all_gather", scatter_all_gather.broadcast, scatter_all_gather.two_hops_cost),
    Algorithm(_K.REDUCE, "binomial", binomial.reduce, binomial.reduce_cost),
    Algorithm(_K.REDUCE, "chain", chain.reduce, chain.chain_cost),
    Algorithm(_K.REDUCE, "scatter_all_gather", scatter_all_gather.reduce, scatter_all_gather.two_hops_cost),
    Algorithm(_K.SCATTER, "direct", direct.scatter, direct.to_each_cost),
    Algorithm(_K.SCATTER, "binomial", binomial.scatter, binomial.scatter_cost),
    Algorithm(_K.GATHER, "direct", direct.gather, direct.gather_cost),
    Algorithm(_K.GATHER, "binomial", binomial.gather, binomial.gather_cost),
    Algorithm(_K.BARRIER, "dissemination", dissemination.barrier, dissemination.barrier_cost),
    Algorithm(_K.ALL_TO_ALL, "direct", direct.all_to_all, direct.to_each_cost),
    Algorithm(_K.ALL_TO_ALL, "pairwise", pairwise.all_to_all, direct.to_each_cost),
    Algorithm(_K.ALL_TO_ALL, "bruck", bruck.all_to_all, bruck.all_to_all_cost, relays=True),
    Algorithm(
        _K.ALL_TO_ALL,
        "2dh",
        two_dimensional.all_to_all,
        two_dimensional.all_to_all_cost,
        two_dimensional.why_unavailable,
        relays=True,
        runs=True,
    ),
    Algorithm(
        _K.ALL_TO_ALL,
        "two_level",
        two_level_all_to_all.all_to_all,
        two_level_all_to_all.all_to_all_cost,
        two_level_all_to_all.why_unavailable,
        relays=True,
        runs=True,
    ),
)
TABLE: dict[Kind, dict[str, Algorithm]] = {kind: {row.name: row for row in _ROWS if row.kind is kind} for kind in Kind}
"""Kind -> name -> row."""


def algorithms(kind: Kind | None = None) -> Iterator[Algorithm]:
    """All rows, or those of one kind."""
    return (row for row in _ROWS if kind in (None, row.kind))


def find(kind: Kind, algorithm: str) -> Algorithm:
    """The row of "ring" or of "multi_ring:1,5". Raises InvalidArgumentError, which names those there are."""
    rows = TABLE[Kind(kind)]
    row = rows.get(algorithm.partition(":")[0])
    if row is None:
        raise InvalidArgumentError(f"{kind} has no algorithm {algorithm!r}; it has {', '.join(rows)}")
    return row


def why_unavailable(kind: Kind, algorithm: str, layout: Layout) -> str:
    """Why this layout can't have that algorithm; "" if it can."""
    return find(kind, algorithm).why_unavailable(Task(0, layout, 0, algorithm.partition(":")[2]))


def viable(kind: Kind, layout: Layout) -> list[str]:
    """Names of the algorithms that this layout can have."""
    return [row.name for row in algorithms(kind) if not row.why_unavailable(Task(0, layout))]


def cost(kind: Kind, algorithm: str, layout: Layout) -> Cost:
    """What it costs, by its formula: rounds, and messages and sections of the rank that sends most; root 0."""
    return find(kind, algorithm).cost(Task(0, layout, 0, algorithm.partition(":")[2]))


@lru_cache(maxsize=512)
def rank_schedule(kind: Kind, algorithm: str, rank: int, layout: Layout, root: int = 0) -> RankSchedule:
    """One rank's schedule; cached. Raises InvalidArgumentError for an algorithm this layout can't have."""
    reason = why_unavailable(kind, algorithm, layout)
    if reason:
        raise InvalidArgumentError(f"{kind} by {algorithm} on {layout.size} ranks: {reason}")
    if not (0 <= rank < layout.size and 0 <= root < layout.size):
        raise InvalidArgumentError(f"rank {rank} or root {root} is not among {layout.size} ranks")
    return find(kind, algorithm).build(Task(rank, layout, root, algorithm.partition(":")[2]))
