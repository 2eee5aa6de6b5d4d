"""Binomial tree: whoever has the data passes it on. For small messages to or from one root.

Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005. Ranks count from the root; the parent of a rank is the rank without its
lowest bit, its children have one lower bit more, so every subtree is a run of ranks.
"""

from __future__ import annotations

from byteps_like.collectives.schedules.builder import Builder, Cost, Task, cost, from_root, sections, to_root
from byteps_like.collectives.schedules.schedule import Buffer, RankSchedule, Span


def children(task: Task) -> list[tuple[int, int]]:
    """Relative rank of each child and the size of its subtree, the largest first."""
    own, n = task.relative, task.size
    reach = own & -own or 1 << (n - 1).bit_length()
    bits = [1 << shift for shift in reversed(range(reach.bit_length() - 1))]
    return [(own + bit, min(bit, n - own - bit)) for bit in bits if own + bit < n]


def parent(task: Task) -> int:
    """Relative rank of the parent; not for the root."""
    return task.relative & (task.relative - 1)


def broadcast(task: Task) -> RankSchedule:
    """floor(log2 n) messages one after the other; the root sends ceil(log2 n) times the vector. No scratch."""
    builder, vector = from_root(task, 1)
    if task.relative:
        vector.receive(task.absolute(parent(task)), 0)
    for child, _ in children(task):
        vector.send(task.absolute(child), 0)
    vector.settle()
    return builder.build()


def broadcast_cost(task: Task) -> Cost:
    """The root sends ceil(log2 n) messages of the section."""
    sent = (task.size - 1).bit_length()
    return cost(task.size.bit_length() - 1, sent, sent)


def reduce(task: Task) -> RankSchedule:
    """The broadcast backwards: each rank sends one message; the root receives ceil(log2 n). Scratch: a vector."""
    builder, vector = to_root(task, 1)
    below = list(reversed(children(task)))
    for number, (child, _) in enumerate(below):
        vector.reduce(task.absolute(child), 0, final=task.relative == 0 and number == len(below) - 1)
    if task.relative:
        vector.send(task.absolute(parent(task)), 0)
    else:
        vector.settle()
    return builder.build()


def reduce_cost(task: Task) -> Cost:
    """One message of one section from each rank, over floor(log2 n) hops."""
    some = int(task.size > 1)
    return cost(task.size.bit_length() - 1, some, some)


def _subtree(task: Task, relative: int) -> int:
    """Number of ranks from this one on that are below it, itself included; not for the root."""
    return min(relative & -relative, task.size - relative)


def _stage(task: Task, builder: Builder, relative: int, count: int) -> int:
    """Scratch slots for the sections of `count` ranks from `relative` on."""
    return builder.scratch(sections([task.absolute(relative + step) for step in range(count)]))


def scatter(task: Task) -> RankSchedule:
    """A rank gets the parts of its whole subtree in one message, which the root has gathered in scratch.

    floor(log2 n) messages one after the other; the root sends ceil(log2 n) of them, n-1 sections. Scratch: the subtree.
    The root's parts may lie apart, so that the others need not know whether they do.
    """
    own = Span(Buffer.OUTPUT, 0)
    if task.relative == 0:
        builder = Builder(task, sections(range(task.size)), sections([task.rank]))
        for child, count in children(task):
            _send_parts(task, builder, child, count)
        builder.copy(Span(Buffer.INPUT, task.rank), own)
        return builder.build()
    builder = Builder(task, output=sections([task.rank]))
    count, above = _subtree(task, task.relative), task.absolute(parent(task))
    if count == 1:
        builder.receive(above, own)
        return builder.build()
    builder.receive(above, Span(Buffer.SCRATCH, _stage(task, builder, task.relative, count), count))
    for child, run in children(task):
        builder.send(task.absolute(child), Span(Buffer.SCRATCH, child - task.relative, run))
    builder.copy(Span(Buffer.SCRATCH, 0), own)
    return builder.build()


def _send_parts(task: Task, builder: Builder, child: int, count: int) -> None:
    source = Span(Buffer.INPUT, task.absolute(child))
    if count > 1:
        first = _stage(task, builder, child, count)
        for step in range(count):
            builder.copy(Span(Buffer.INPUT, task.absolute(child + step)), Span(Buffer.SCRATCH, first + step))
        source = Span(Buffer.SCRATCH, first, count)
    builder.send(task.absolute(child), source)


def scatter_cost(task: Task) -> Cost:
    """The root sends ceil(log2 n) messages, n-1 sections."""
    return cost(task.size.bit_length() - 1, (task.size - 1).bit_length(), task.size - 1)


def gather(task: Task) -> RankSchedule:
    """The scatter backwards: each rank sends one message, its subtree's sections. Scratch: the subtree."""
    if task.relative == 0:
        builder = Builder(task, sections([task.rank]), sections(range(task.size)), alias=task.rank)
        builder.copy(Span(Buffer.INPUT, 0), Span(Buffer.OUTPUT, task.rank))
        for child, count in reversed(children(task)):
            _receive_parts(task, builder, child, count)
        return builder.build()
    builder = Builder(task, sections([task.rank]))
    count, above = _subtree(task, task.relative), task.absolute(parent(task))
    if count == 1:
        builder.send(above, Span(Buffer.INPUT, 0))
        return builder.build()
    _stage(task, builder, task.relative, count)
    builder.copy(Span(Buffer.INPUT, 0), Span(Buffer.SCRATCH, 0))
    for child, run in reversed(children(task)):
        builder.receive(task.absolute(child), Span(Buffer.SCRATCH, child - task.relative, run))
    builder.send(above, Span(Buffer.SCRATCH, 0, count))
    return builder.build()


def _receive_parts(task: Task, builder: Builder, child: int, count: int) -> None:
    if count == 1:
        builder.receive(task.absolute(child), Span(Buffer.OUTPUT, task.absolute(child)))
        return
    first = _stage(task, builder, child, count)
    builder.receive(task.absolute(child), Span(Buffer.SCRATCH, first, count))
    for step in range(count):
        builder.copy(Span(Buffer.SCRATCH, first + step), Span(Buffer.OUTPUT, task.absolute(child + step)))


def gather_cost(task: Task) -> Cost:
    """One message from each rank, of its subtree's sections: up to the largest power of two below n."""
    largest = max((_subtree(task, relative) for relative in range(1, task.size)), default=0)
    return cost(task.size.bit_length() - 1, int(task.size > 1), largest)
