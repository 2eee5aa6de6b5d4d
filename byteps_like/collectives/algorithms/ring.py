"""Ring: every chunk goes once around. Best for large messages on equal links: every link carries the same bytes.

Patarasuk, Yuan: Bandwidth optimal all-reduce algorithms for clusters of workstations. JPDC 69(2), 2009.
Ranks of one host are neighbours in the ring, so that only one link enters and one leaves each host.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from byteps_like.collectives.schedules.builder import (
    Cost,
    Task,
    Vector,
    cost,
    part_for_each,
    part_of_each,
    whole_vector,
)
from byteps_like.collectives.schedules.schedule import Buffer, RankSchedule

Part = tuple[int, int]
"""First chunk and number of chunks of a vector."""


def reduce_around(vector: Vector, members: Sequence[int], position: int, parts: Sequence[Part], complete: bool) -> None:
    """Reduce-scatter among `members`: afterwards `position` holds the reduction of parts[position].

    Part p starts at member p + 1 and ends at p. `complete`: it then has every contribution of the collective.
    """
    count = len(members)
    following, previous = members[(position + 1) % count], members[position - 1]
    for step in range(count - 1):
        vector.send(following, *parts[(position - 1 - step) % count])
        final = complete and step == count - 2
        vector.reduce(previous, *parts[(position - 2 - step) % count], final=final)


def gather_around(vector: Vector, members: Sequence[int], position: int, parts: Sequence[Part]) -> None:
    """All-gather among `members`: at the start `position` holds parts[position], at the end all of them."""
    count = len(members)
    following, previous = members[(position + 1) % count], members[position - 1]
    for step in range(count - 1):
        vector.send(following, *parts[(position - step) % count])
        vector.receive(previous, *parts[(position - 1 - step) % count])


def all_reduce(task: Task) -> RankSchedule:
    """Reduce-scatter, then all-gather, around a ring of n pieces.

    2(n-1) rounds; each rank sends 2(n-1) messages of 1/n of the vector: 2(n-1)/n of it, the least that is possible.
    """
    order = task.layout.by_host
    builder, vector = whole_vector(task, task.size)
    parts = [(piece, 1) for piece in range(task.size)]
    reduce_around(vector, order, order.index(task.rank), parts, complete=True)
    gather_around(vector, order, order.index(task.rank), parts)
    vector.settle()
    return builder.build()


def all_reduce_cost(task: Task) -> Cost:
    """2(n-1) messages, 2(n-1)/n sections."""
    n = task.size
    return cost(2 * (n - 1), 2 * (n - 1), Fraction(2 * (n - 1), n))


def reduce_scatter(task: Task) -> RankSchedule:
    """Partial sums go around; part r ends at rank r. n-1 rounds, n-1 messages, n-1 sections. Scratch: n-2 sections."""
    order = task.layout.by_host
    builder, vector = part_for_each(task)
    vector.aim(task.rank, (Buffer.OUTPUT, 0))
    reduce_around(vector, order, order.index(task.rank), [(rank, 1) for rank in order], complete=True)
    vector.settle()
    return builder.build()


def all_gather(task: Task) -> RankSchedule:
    """Every section goes around. n-1 rounds, n-1 messages, n-1 sections; no scratch."""
    order = task.layout.by_host
    builder, vector = part_of_each(task)
    gather_around(vector, order, order.index(task.rank), [(rank, 1) for rank in order])
    vector.settle()
    return builder.build()


def around_cost(task: Task) -> Cost:
    """n-1 messages, n-1 sections."""
    return cost(task.size - 1, task.size - 1, task.size - 1)
