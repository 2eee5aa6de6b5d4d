"""The schedule language: an algorithm is a generator of steps for one rank, over abstract chunks of three buffers.

A *section* is what a call counts by itself: the whole vector of an all-reduce, the part of one rank in an all-gather,
the block from s to d in an all-to-all. A *chunk* is a section or an even piece of one. Schedules know no sizes: the
sizes of the sections are given when one is run, and may be uneven or zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from functools import cached_property


class Kind(StrEnum):
    """What a schedule does. Sections: one, or `size` (one per rank), or `size`**2 (block s -> d is s * size + d)."""

    ALL_REDUCE = "all_reduce"  # 1 section
    REDUCE = "reduce"  # 1
    BROADCAST = "broadcast"  # 1
    BARRIER = "barrier"  # 1, of no bytes
    REDUCE_SCATTER = "reduce_scatter"  # size
    ALL_GATHER = "all_gather"  # size
    SCATTER = "scatter"  # size
    GATHER = "gather"  # size
    ALL_TO_ALL = "all_to_all"  # size ** 2

    __hash__ = str.__hash__  # Enum's is written in Python, and calls are looked up by it


class StepKind(IntEnum):
    """The four things a rank can do; mirrors collectives/program.h."""

    SEND = 0
    RECEIVE = 1
    RECEIVE_REDUCE = 2
    COPY = 3


class Buffer(IntEnum):
    """Where chunks lie: the caller's source, the caller's target, memory of the run's own."""

    INPUT = 0
    OUTPUT = 1
    SCRATCH = 2


@dataclass(frozen=True)
class Chunk:
    """Piece `piece` of `pieces` even ones of a section; what a buffer's slot has room for."""

    section: int
    piece: int = 0
    pieces: int = 1


@dataclass(frozen=True)
class Span:
    """Slots [first, first + count) of a buffer; more than one only where they lie one behind the other."""

    buffer: Buffer
    first: int
    count: int = 1


@dataclass(frozen=True)
class Step:
    """SEND: `source` to `peer`. RECEIVE: `target` from it. RECEIVE_REDUCE: `target` = `source` op what comes.
    COPY: `target` = `source`. `tag` matches a send with its receive, uniquely per (sender, receiver).

    `final`: after this RECEIVE_REDUCE `target` holds every contribution, so an average is divided here.
    """

    kind: StepKind
    peer: int = -1
    tag: int = 0
    source: Span | None = None
    target: Span | None = None
    final: bool = False


@dataclass(frozen=True)
class RankSchedule:
    """One rank's part: what its buffers' slots are, in memory order, and its steps in program order.

    `alias`: in a call in place the input is the output's slots [alias, alias + len(input)); None where the kind has
    no such call on this rank. A reduce-scatter has none, but its output may lie on its own part of the input: the
    checker proves that this part is not read any more when it is written.
    """

    rank: int
    size: int
    input: tuple[Chunk, ...]
    output: tuple[Chunk, ...]
    scratch: tuple[Chunk, ...]
    steps: tuple[Step, ...]
    alias: int | None = None

    def __hash__(self) -> int:  # cheap: schedules are keys of caches on the way of every call
        return hash((self.rank, self.size, len(self.steps), len(self.output), len(self.scratch)))


@dataclass(frozen=True)
class Layout:
    """Which ranks share a host: `hosts[rank]` numbers it. What hierarchical algorithms are made for."""

    hosts: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.hosts)

    @cached_property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each host, both in rising order of rank."""
        found: dict[int, list[int]] = {}
        for rank, host in enumerate(self.hosts):
            found.setdefault(host, []).append(rank)
        return tuple(tuple(ranks) for ranks in found.values())

    @cached_property
    def by_host(self) -> tuple[int, ...]:
        """All ranks, those of one host behind one another."""
        return tuple(rank for ranks in self.members for rank in ranks)

    def place(self, rank: int) -> tuple[int, int]:
        """Index of its host in `members`, and its index there."""
        return self._places[rank]

    @cached_property
    def _places(self) -> tuple[tuple[int, int], ...]:
        places = {rank: (host, local) for host, ranks in enumerate(self.members) for local, rank in enumerate(ranks)}
        return tuple(places[rank] for rank in range(self.size))
