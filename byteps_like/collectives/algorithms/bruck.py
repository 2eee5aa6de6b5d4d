"""Bruck: a logarithm of messages, for small ones. Blocks are gathered in scratch, so that a message is one run.

Bruck, Ho, Kipnis, Upfal, Weathersby: Efficient algorithms for all-to-all communications in multiport message-passing
systems. IEEE TPDS 8(11), 1997.
"""

from __future__ import annotations

from byteps_like.collectives.schedules.builder import Builder, Cost, Task, blocks, cost, sections
from byteps_like.collectives.schedules.schedule import Buffer, Chunk, RankSchedule, Span


def all_gather(task: Task) -> RankSchedule:
    """Round k brings the 2**k sections that the rank 2**k to the right has.

    ceil(log2 n) rounds and messages, n-1 sections; scratch and copies of n sections.
    """
    n, rank = task.size, task.rank
    order = [(rank + step) % n for step in range(n)]
    builder = Builder(task, sections([rank]), sections(range(n)), alias=rank)
    builder.scratch(sections(order))
    builder.copy(Span(Buffer.INPUT, 0), Span(Buffer.SCRATCH, 0))
    held = 1
    while held < n:
        more = min(held, n - held)
        builder.send((rank - held) % n, Span(Buffer.SCRATCH, 0, more))
        builder.receive((rank + held) % n, Span(Buffer.SCRATCH, held, more))
        held += more
    builder.copy(Span(Buffer.INPUT, 0), Span(Buffer.OUTPUT, rank))
    for slot, section in enumerate(order[1:], start=1):
        builder.copy(Span(Buffer.SCRATCH, slot), Span(Buffer.OUTPUT, section))
    return builder.build()


def all_gather_cost(task: Task) -> Cost:
    """ceil(log2 n) messages, n-1 sections."""
    rounds = (task.size - 1).bit_length()
    return cost(rounds, rounds, task.size - 1)


def all_to_all(task: Task) -> RankSchedule:
    """A block that has j ranks to go moves 2**k to the right in round k if bit k of j is set.

    ceil(log2 n) rounds and messages; a block is sent once for each bit of j that is set, about n/2 log2 n sections in
    all; scratch and copies of twice that.
    """
    n, rank = task.size, task.rank
    builder = blocks(task)
    builder.copy(Span(Buffer.INPUT, rank), Span(Buffer.OUTPUT, rank))
    held = {j: Span(Buffer.INPUT, (rank + j) % n) for j in range(1, n)}
    bit = 1
    while bit < n:
        moving = [j for j in range(1, n) if j & bit]
        packed = builder.scratch([_block(task, rank, j, bit) for j in moving])
        for slot, j in enumerate(moving):
            builder.copy(held[j], Span(Buffer.SCRATCH, packed + slot))
        builder.send((rank + bit) % n, Span(Buffer.SCRATCH, packed, len(moving)))
        came = builder.scratch([_block(task, (rank - bit) % n, j, bit) for j in moving])
        builder.receive((rank - bit) % n, Span(Buffer.SCRATCH, came, len(moving)))
        held.update({j: Span(Buffer.SCRATCH, came + slot) for slot, j in enumerate(moving)})
        bit *= 2
    for j in range(1, n):
        builder.copy(held[j], Span(Buffer.OUTPUT, (rank - j) % n))
    return builder.build()


def _block(task: Task, holder: int, j: int, bit: int) -> Chunk:
    """The block that has j ranks to go in all and, before round `bit`, is at `holder`."""
    n = task.size
    source = (holder - (j & (bit - 1))) % n
    return sections([source * n + (source + j) % n])[0]


def all_to_all_cost(task: Task) -> Cost:
    """ceil(log2 n) messages; as many sections as bits are set in 1..n-1."""
    rounds = (task.size - 1).bit_length()
    return cost(rounds, rounds, sum(j.bit_count() for j in range(task.size)))
