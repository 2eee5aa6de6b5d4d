"""Two levels for parts: what leaves or enters a host does so once, and is spread or summed within it.

Zhang et al.: MiCS. PVLDB 16(1), 2022 (all-gather: across hosts first, then within). On each host a *carrier* stands for
every rank of the other hosts: the one with the same local index, modulo the host's ranks. So any layout will do.
"""

from __future__ import annotations

from byteps_like.collectives.algorithms.hierarchical import why_unavailable as why_unavailable  # the same condition
from byteps_like.collectives.schedules.builder import Cost, Task, cost, part_for_each, part_of_each
from byteps_like.collectives.schedules.schedule import Buffer, Layout, RankSchedule


def carrier(layout: Layout, host: int, rank: int) -> int:
    """Who stands for `rank` on a host."""
    ranks = layout.members[host]
    return ranks[layout.place(rank)[1] % len(ranks)]


def carried(layout: Layout, rank: int) -> list[int]:
    """The ranks of other hosts that `rank` stands for on its own, nearest host first."""
    host, local = layout.place(rank)
    ranks = len(layout.members[host])
    found: list[int] = []
    for step in range(1, len(layout.members)):
        other = layout.members[(host + step) % len(layout.members)]
        found += other[local::ranks]
    return found


def neighbours(task: Task) -> list[int]:
    """The other ranks of this one's host, from the next on."""
    host, local = task.layout.place(task.rank)
    ranks = task.layout.members[host]
    return [*ranks[local + 1 :], *ranks[:local]]


def other_hosts(task: Task) -> list[int]:
    """The other hosts, from the next on."""
    host, count = task.layout.place(task.rank)[0], len(task.layout.members)
    return [(host + step) % count for step in range(1, count)]


def all_gather(task: Task) -> RankSchedule:
    """A section goes to its carrier on each other host, and is forwarded there to the host's ranks while it comes.

    2 rounds. Across: H-1 messages and sections; within, with c sections carried: (m-1)(1+c). No scratch.
    """
    layout, rank = task.layout, task.rank
    builder, vector = part_of_each(task)
    near = neighbours(task)
    for host in other_hosts(task):
        vector.send(carrier(layout, host, rank), rank)
    for peer in near:
        vector.send(peer, rank)
    for section in carried(layout, rank):
        vector.receive(section, section)
        for peer in near:
            vector.send(peer, section)
    for peer in reversed(near):
        for section in (peer, *carried(layout, peer)):
            vector.receive(peer, section)
    vector.settle()
    return builder.build()


def all_gather_cost(task: Task) -> Cost:
    """H-1 + (m-1)(1+c) messages and sections, of the rank for which that is most."""
    layout, hosts = task.layout, len(task.layout.members)
    sent = 0
    for rank in range(task.size):
        near = len(layout.members[layout.place(rank)[0]]) - 1
        sent = max(sent, hosts - 1 + near * (1 + len(carried(layout, rank))))
    return cost(_rounds(layout), sent, sent)


def reduce_scatter(task: Task) -> RankSchedule:
    """The all-gather backwards: a host's carrier of a section sums it within the host, then sends it to its rank.

    2 rounds. A rank sends its whole input but what it carries within the host, and what it carries (c sections) across.
    Scratch: c sections.
    """
    layout, rank = task.layout, task.rank
    builder, vector = part_for_each(task)
    near = neighbours(task)
    for peer in near:
        for section in (*carried(layout, peer), peer):
            vector.send(peer, section)
    for section in carried(layout, rank):
        for peer in reversed(near):
            vector.reduce(peer, section)
        vector.send(section, section)
    vector.aim(rank, (Buffer.OUTPUT, 0))
    far = [carrier(layout, host, rank) for host in other_hosts(task)]
    sources = [*reversed(near), *reversed(far)]
    for number, peer in enumerate(sources):
        vector.reduce(peer, rank, final=number == len(sources) - 1)
    vector.settle()
    return builder.build()


def reduce_scatter_cost(task: Task) -> Cost:
    """n - 1 messages and sections if the host has several ranks, of which c are sums and go across; else H - 1."""
    layout = task.layout
    return cost(_rounds(layout), *(max(_sent(layout, rank) for rank in range(task.size)),) * 2)


def _sent(layout: Layout, rank: int) -> int:
    """Of n sections a rank keeps its own and those it carries, and sends the sums of the latter."""
    return layout.size - 1 - len(carried(layout, rank)) + len(carried(layout, rank))


def _rounds(layout: Layout) -> int:
    inside = max(len(ranks) for ranks in layout.members) > 1
    return int(inside) + int(len(layout.members) > 1)
