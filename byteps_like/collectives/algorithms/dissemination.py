"""Dissemination barrier: in round k tell the rank 2**k to the right, and wait for the one 2**k to the left.

Hensgen, Finkel, Manber: Two algorithms for barrier synchronization. Int. J. Parallel Programming 17(1), 1988.
"""

from __future__ import annotations

from byteps_like.collectives.schedules.builder import Builder, Cost, Task, cost, sections
from byteps_like.collectives.schedules.schedule import Buffer, RankSchedule, Span


def barrier(task: Task) -> RankSchedule:
    """ceil(log2 n) rounds and messages. One token is sent and received over itself, which keeps the rounds in order."""
    builder = Builder(task)
    builder.scratch(sections([0]))
    token = Span(Buffer.SCRATCH, 0)
    distance = 1
    while distance < task.size:
        builder.send((task.rank + distance) % task.size, token)
        builder.receive((task.rank - distance) % task.size, token)
        distance *= 2
    return builder.build()


def barrier_cost(task: Task) -> Cost:
    """ceil(log2 n) messages of the token."""
    rounds = (task.size - 1).bit_length()
    return cost(rounds, rounds, rounds)
