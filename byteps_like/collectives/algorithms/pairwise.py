"""Pairwise exchange: in every step each rank exchanges with one other, so no rank is everybody's first.

Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005.
"""

from __future__ import annotations

from byteps_like.collectives.schedules.builder import Task, blocks
from byteps_like.collectives.schedules.schedule import Buffer, RankSchedule, Span


def all_to_all(task: Task) -> RankSchedule:
    """Partners meet in the same step: rank ^ step if n is a power of two, else step - rank.

    1 round, n-1 messages, n-1 sections, as `direct`, and no scratch. Steps are an order of priority, not a barrier:
    a late partner holds nobody back.
    """
    n, rank = task.size, task.rank
    paired = n & (n - 1) == 0
    builder = blocks(task)
    for step in range(n):
        peer = rank ^ step if paired else (step - rank) % n
        if peer == rank:
            builder.copy(Span(Buffer.INPUT, rank), Span(Buffer.OUTPUT, rank))
        else:
            builder.send(peer, Span(Buffer.INPUT, peer))
            builder.receive(peer, Span(Buffer.OUTPUT, peer))
    return builder.build()
