"""Broadcast as scatter and all-gather, reduce as reduce-scatter and gather: the chain's bytes in two hops.

Barnett, Gupta, Payne, Shuler, van de Geijn, Watts: Interprocessor collective communication library. SHPCC 1994. There
the root takes a piece as well and the all-gather is a ring; here the n-1 others take one each and pass it on to one
another while it comes, so the root's link carries the vector once and nobody gets anything twice.
"""

from __future__ import annotations

from byteps_like.collectives.schedules.builder import Cost, Task, cost, from_root, to_root
from byteps_like.collectives.schedules.schedule import RankSchedule


def _others(task: Task) -> list[tuple[int, int]]:
    """(piece, rank) of those that are not the root, from the next one on."""
    first = task.relative
    ranks = [(first + step) % task.size for step in range(1, task.size)]
    return [(relative - 1, task.absolute(relative)) for relative in ranks if relative]


def broadcast(task: Task) -> RankSchedule:
    """2 rounds; the root sends n-1 messages, 1 vector; the others n-2 of 1/(n-1). No scratch."""
    builder, vector = from_root(task, max(1, task.size - 1))
    own = task.relative - 1
    if task.relative == 0:
        for piece, rank in _others(task):
            vector.send(rank, piece)
    else:
        vector.receive(task.root, own)
        for _, rank in _others(task):
            vector.send(rank, own)
        for piece, rank in reversed(_others(task)):
            vector.receive(rank, piece)
    vector.settle()
    return builder.build()


def reduce(task: Task) -> RankSchedule:
    """2 rounds; the others send n-1 messages, 1 vector in all; the root receives 1. Scratch: 1/(n-1) of the vector."""
    builder, vector = to_root(task, max(1, task.size - 1))
    own = task.relative - 1
    if task.relative == 0:
        for piece, rank in _others(task):
            vector.reduce(rank, piece, final=True)
        vector.settle()
        return builder.build()
    for piece, rank in _others(task):
        vector.send(rank, piece)
    for _, rank in reversed(_others(task)):
        vector.reduce(rank, own)
    vector.send(task.root, own)
    return builder.build()


def two_hops_cost(task: Task) -> Cost:
    """n-1 messages, 1 section."""
    return cost(min(2, task.size - 1), task.size - 1, int(task.size > 1))
