"""Direct: everybody deals with everybody at once. Fewest rounds at the least bytes, but n-1 messages at a time.

Good on few ranks, and where a message costs little. All steps are independent, so all links work at the same time;
ranks begin with their right-hand neighbour, so that not all send to the same one first.
"""

from __future__ import annotations

from fractions import Fraction

from byteps_like.collectives.schedules.builder import (
    Builder,
    Cost,
    Task,
    blocks,
    cost,
    part_for_each,
    part_of_each,
    sections,
    whole_vector,
)
from byteps_like.collectives.schedules.schedule import Buffer, RankSchedule, Span


def following(task: Task) -> list[int]:
    """The other ranks, from the right-hand neighbour on."""
    return [(task.rank + step) % task.size for step in range(1, task.size)]


def preceding(task: Task) -> list[int]:
    """The other ranks, from the left-hand neighbour on."""
    return [(task.rank - step) % task.size for step in range(1, task.size)]


def all_reduce(task: Task) -> RankSchedule:
    """Rank r reduces piece r of all, then gives it to all. 2 rounds, 2(n-1) messages, 2(n-1)/n of the vector."""
    builder, vector = whole_vector(task, task.size)
    for peer in following(task):
        vector.send(peer, peer)
    for number, peer in enumerate(preceding(task)):
        vector.reduce(peer, task.rank, final=number == task.size - 2)
    for peer in following(task):
        vector.send(peer, task.rank)
    for peer in preceding(task):
        vector.receive(peer, peer)
    vector.settle()
    return builder.build()


def all_reduce_cost(task: Task) -> Cost:
    """2(n-1) messages, 2(n-1)/n sections."""
    n = task.size
    return cost(2 * (n > 1), 2 * (n - 1), Fraction(2 * (n - 1), n))


def reduce_scatter(task: Task) -> RankSchedule:
    """Every rank gets its part from all. 1 round, n-1 messages, n-1 sections; no scratch."""
    builder, vector = part_for_each(task)
    vector.aim(task.rank, (Buffer.OUTPUT, 0))
    for peer in following(task):
        vector.send(peer, peer)
    for number, peer in enumerate(preceding(task)):
        vector.reduce(peer, task.rank, final=number == task.size - 2)
    if task.size == 1:
        vector.settle()
    return builder.build()


def all_gather(task: Task) -> RankSchedule:
    """Every rank gives its section to all. 1 round, n-1 messages, n-1 sections; no scratch."""
    builder, vector = part_of_each(task)
    for peer in following(task):
        vector.send(peer, task.rank)
    for peer in preceding(task):
        vector.receive(peer, peer)
    vector.settle()
    return builder.build()


def scatter(task: Task) -> RankSchedule:
    """The root sends every rank its part. 1 round; the root sends n-1 messages, n-1 sections."""
    own = sections([task.rank])
    if task.rank != task.root:
        builder = Builder(task, output=own)
        builder.receive(task.root, Span(Buffer.OUTPUT, 0))
        return builder.build()
    builder = Builder(task, sections(range(task.size)), own)
    for peer in following(task):
        builder.send(peer, Span(Buffer.INPUT, peer))
    builder.copy(Span(Buffer.INPUT, task.rank), Span(Buffer.OUTPUT, 0))
    return builder.build()


def gather(task: Task) -> RankSchedule:
    """Every rank sends the root its section. 1 round; 1 message and 1 section from each."""
    own = sections([task.rank])
    if task.rank != task.root:
        builder = Builder(task, own)
        builder.send(task.root, Span(Buffer.INPUT, 0))
        return builder.build()
    builder = Builder(task, own, sections(range(task.size)), alias=task.rank)
    for peer in following(task):
        builder.receive(peer, Span(Buffer.OUTPUT, peer))
    builder.copy(Span(Buffer.INPUT, 0), Span(Buffer.OUTPUT, task.rank))
    return builder.build()


def all_to_all(task: Task) -> RankSchedule:
    """Every block goes straight from its input to its output. 1 round, n-1 messages, n-1 sections; no scratch."""
    builder = blocks(task)
    for peer in following(task):
        builder.send(peer, Span(Buffer.INPUT, peer))
    for peer in preceding(task):
        builder.receive(peer, Span(Buffer.OUTPUT, peer))
    builder.copy(Span(Buffer.INPUT, task.rank), Span(Buffer.OUTPUT, task.rank))
    return builder.build()


def to_each_cost(task: Task) -> Cost:
    """n-1 messages, n-1 sections."""
    return cost(int(task.size > 1), task.size - 1, task.size - 1)


def gather_cost(task: Task) -> Cost:
    """One message of one section."""
    return cost(*(int(task.size > 1),) * 3)
