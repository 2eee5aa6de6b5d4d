"""From a schedule to what the native executor takes: a program's arguments, and where its chunks lie in one call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from byteps_like.collectives import library
from byteps_like.collectives.schedules.schedule import Buffer, Chunk, Kind, Layout, RankSchedule, Span
from byteps_like.errors import InvalidArgumentError

GRAIN = 64  # bytes; pieces begin at multiples of it within their section: a cache line, and whole elements of any dtype

Counts = int | Sequence[int] | Mapping[int, int]
"""Elements of each section, by its number; an integer: of every section."""
ChunkTable = list[tuple[int, int]]
"""(byte offset from the buffer's address, bytes) for each slot."""


class Tables(NamedTuple):
    """Where the chunks of the three buffers lie. Shared: not to be changed."""

    input: ChunkTable
    output: ChunkTable
    scratch: ChunkTable


def arguments(schedule: RankSchedule, *, in_place: bool = False) -> tuple[Any, ...]:
    """What `_core.Program` is made of: (rank, size, input, output and scratch chunks, steps, alias or -1).

    Raises InvalidArgumentError if a call in place is wanted of a schedule that has none.
    """
    alias = schedule.alias if in_place else -1
    if alias is None:
        raise InvalidArgumentError("this collective can't run in place on this rank; pass a separate target")
    steps = [
        (int(step.kind), step.peer, step.tag, *_span(step.source), *_span(step.target), step.final)
        for step in schedule.steps
    ]
    chunks = len(schedule.input), len(schedule.output), len(schedule.scratch)
    return (schedule.rank, schedule.size, *chunks, steps, alias)


@lru_cache(maxsize=512)
def program(kind: Kind, algorithm: str, rank: int, layout: Layout, root: int = 0, in_place: bool = False) -> Any:
    """The native program of one rank's schedule (`_core.Program`); cached."""
    from byteps_like import _core

    return _core.Program(*arguments(library.rank_schedule(kind, algorithm, rank, layout, root), in_place=in_place))


@lru_cache(maxsize=4096)
def _even_tables(schedule: RankSchedule, counts: int | tuple[int, ...], itemsize: int) -> Tables:
    return _tables(schedule, counts, itemsize)


def tables(schedule: RankSchedule, counts: Counts, itemsize: int) -> Tables:
    """The chunks' places where sections lie one behind the other in each buffer. Cached for equal counts.

    A barrier's one section, its token, is a byte: counts 1, itemsize 1. An all-to-all by an algorithm that relays needs
    the counts of blocks between other ranks too (see library.Algorithm.relays).
    """
    if isinstance(counts, Mapping):
        return _tables(schedule, counts, itemsize)
    return _even_tables(schedule, counts if isinstance(counts, int) else tuple(counts), itemsize)


def all_to_all_counts(rank: int, size: int, send: Sequence[int], receive: Sequence[int]) -> dict[int, int]:
    """The counts of the blocks that an all-to-all without relays touches on this rank."""
    found = {rank * size + target: count for target, count in enumerate(send)}
    return found | {source * size + rank: count for source, count in enumerate(receive)}


def scattered(chunks: Sequence[Chunk], counts: Counts, itemsize: int, addresses: Sequence[int]) -> ChunkTable:
    """The same for sections that lie apart: `addresses` has one for each, in the buffer's order.

    Offsets count from the first address. Only for buffers of which the schedule takes no runs (`takes_runs`).
    """
    order = list(dict.fromkeys(chunk.section for chunk in chunks))
    if len(order) != len(addresses):
        raise InvalidArgumentError(f"{len(addresses)} addresses for {len(order)} parts")
    start = dict(zip(order, (address - addresses[0] for address in addresses), strict=True))
    bound = [(start[chunk.section], _piece(chunk, counts, itemsize)) for chunk in chunks]
    return [(base + offset, length) for base, (offset, length) in bound]


@lru_cache(maxsize=1024)
def takes_runs(schedule: RankSchedule, buffer: Buffer) -> bool:
    """Whether a message or copy spans several sections of the buffer: then they must lie one behind the other."""
    chunks = (schedule.input, schedule.output, schedule.scratch)[buffer]
    return any(
        len({chunk.section for chunk in chunks[span.first : span.first + span.count]}) > 1
        for step in schedule.steps
        for span in (step.source, step.target)
        if span is not None and span.buffer is buffer and span.count > 1
    )


@lru_cache(maxsize=8192)
def cut(nbytes: int, pieces: int) -> tuple[tuple[int, int], ...]:
    """(offset, bytes) of even pieces of a section, each beginning at a multiple of GRAIN; some may be empty.

    A cut falls at the same byte for equal fractions, so 1/2 of a section is exactly its first 2/4.
    """
    grains = -(-nbytes // GRAIN)
    bounds = [min(nbytes, grains * piece // pieces * GRAIN) for piece in range(pieces + 1)]
    return tuple((low, high - low) for low, high in pairwise(bounds))


def _tables(schedule: RankSchedule, counts: Counts, itemsize: int) -> Tables:
    return Tables(*(list(_behind(chunks, counts, itemsize)) for chunks in _buffers(schedule)))


def _buffers(schedule: RankSchedule) -> tuple[tuple[Chunk, ...], ...]:
    return schedule.input, schedule.output, schedule.scratch


def _behind(chunks: Sequence[Chunk], counts: Counts, itemsize: int) -> Iterator[tuple[int, int]]:
    offset = 0
    for chunk in chunks:
        _, length = _piece(chunk, counts, itemsize)
        yield offset, length
        offset += length


def _piece(chunk: Chunk, counts: Counts, itemsize: int) -> tuple[int, int]:
    nbytes = (counts if isinstance(counts, int) else counts[chunk.section]) * itemsize
    return (0, nbytes) if chunk.pieces == 1 else cut(nbytes, chunk.pieces)[chunk.piece]


def _span(span: Span | None) -> tuple[int, int, int]:
    return (-1, 0, 0) if span is None else (int(span.buffer), span.first, span.count)
