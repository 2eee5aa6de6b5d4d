"""Binomial tree: whoever has the data passes it on. For small messages to or from one root.

Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005. Ranks count from the root; the parent of a rank is the rank without its
lowest bit, its children have one lower bit more, so every subtree is a run of ranks.
"""

from __future__ import annotations

from byteps_like.collectives.builder import Builder, Cost, Task, cost, from_root, sections, to_root
from byteps_like.collectives.schedule import Buffer, RankSchedule, Span


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


def _runs(task: Task, first: int, count: int) -> list[tuple[int, int]]:
    """A run of relative ranks as runs of absolute ones: two where it passes rank n - 1."""
    start = task.absolute(first)
    head = min(count, task.size - start)
    return [(start, head)] + ([(0, count - head)] if count > head else [])


def scatter(task: Task) -> RankSchedule:
    """A rank gets the parts of its whole subtree in one message (two from the root where they pass rank n - 1).

    floor(log2 n) messages one after the other; the root sends ceil(log2 n) of them, n-1 sections. Scratch: the subtree.
    """
    own = Span(Buffer.OUTPUT, 0)
    if task.relative == 0:
        builder = Builder(task, sections(range(task.size)), sections([task.rank]))
        for child, count in children(task):
            for first, run in _runs(task, child, count):
                builder.send(task.absolute(child), Span(Buffer.INPUT, first, run))
        builder.copy(Span(Buffer.INPUT, task.rank), own)
        return builder.build()
    builder = Builder(task, output=sections([task.rank]))
    _take(task, builder, own)
    for child, count in children(task):
        builder.send(task.absolute(child), Span(Buffer.SCRATCH, child - task.relative, count))
    if children(task):
        builder.copy(Span(Buffer.SCRATCH, 0), own)
    return builder.build()


def _subtree(task: Task) -> int:
    """Number of ranks from this one on that are below it, itself included; not for the root."""
    return min(task.relative & -task.relative, task.size - task.relative)


def _take(task: Task, builder: Builder, own: Span) -> None:
    """Receives the subtree's parts: in scratch, or straight in the output if there is but one."""
    count, above = _subtree(task), parent(task)
    if count == 1:
        builder.receive(task.absolute(above), own)
        return
    builder.scratch(sections([task.absolute(task.relative + step) for step in range(count)]))
    slot = 0
    for _, run in _runs(task, task.relative, count) if above == 0 else [(0, count)]:
        builder.receive(task.absolute(above), Span(Buffer.SCRATCH, slot, run))
        slot += run


def scatter_cost(task: Task) -> Cost:
    """The root sends ceil(log2 n) messages, n-1 sections."""
    return cost(task.size.bit_length() - 1, (task.size - 1).bit_length(), task.size - 1)


def gather(task: Task) -> RankSchedule:
    """The scatter backwards: each rank sends one message, its subtree's sections. Scratch: the subtree."""
    if task.relative == 0:
        builder = Builder(task, sections([task.rank]), sections(range(task.size)), alias=task.rank)
        builder.copy(Span(Buffer.INPUT, 0), Span(Buffer.OUTPUT, task.rank))
        for child, count in reversed(children(task)):
            for first, run in _runs(task, child, count):
                builder.receive(task.absolute(child), Span(Buffer.OUTPUT, first, run))
        return builder.build()
    builder = Builder(task, sections([task.rank]))
    count, above = _subtree(task), parent(task)
    if count == 1:
        builder.send(task.absolute(above), Span(Buffer.INPUT, 0))
        return builder.build()
    builder.scratch(sections([task.absolute(task.relative + step) for step in range(count)]))
    builder.copy(Span(Buffer.INPUT, 0), Span(Buffer.SCRATCH, 0))
    for child, run in reversed(children(task)):
        builder.receive(task.absolute(child), Span(Buffer.SCRATCH, child - task.relative, run))
    slot = 0
    for _, run in _runs(task, task.relative, count) if above == 0 else [(0, count)]:
        builder.send(task.absolute(above), Span(Buffer.SCRATCH, slot, run))
        slot += run
    return builder.build()


def gather_cost(task: Task) -> Cost:
    """One message from each rank, of the largest subtree's sections: the root's first child."""
    largest = children(Task(0, task.layout))[0][1] if task.size > 1 else 0
    inner = max((_subtree(Task(rank, task.layout)) for rank in range(1, task.size)), default=0)
    return cost(task.size.bit_length() - 1, int(task.size > 1), max(largest, inner))
