"""All-to-all in which the legs within hosts and across them run at the same time.

The order of Shi et al.: ScheMoE (EuroSys 2024), "Pipe-A2A". Blocks for another host go in one message to the rank with
the same local index there, which passes them on; blocks for the own host go straight to their rank meanwhile. Unlike
2DH it copies nothing before the first send, takes any layout, and keeps the links between hosts busy from the start.
"""

from __future__ import annotations

from byteps_like.collectives.algorithms.hierarchical import why_unavailable as why_unavailable  # the same condition
from byteps_like.collectives.algorithms.two_level import carried, carrier, neighbours, other_hosts
from byteps_like.collectives.schedules.builder import Builder, Cost, Task, blocks, cost, sections
from byteps_like.collectives.schedules.schedule import Buffer, RankSchedule, Span


def all_to_all(task: Task) -> RankSchedule:
    """2 rounds. H-1 messages across, n-m sections; within, m-1 of one section and m-1 of what the rank carries.

    Scratch: twice what it carries, and once what is carried for it.
    """
    builder = blocks(task)
    _send_across(task, builder)
    near = neighbours(task)
    for peer in near:
        builder.send(peer, Span(Buffer.INPUT, peer))
    for peer in reversed(near):
        builder.receive(peer, Span(Buffer.OUTPUT, peer))
    builder.copy(Span(Buffer.INPUT, task.rank), Span(Buffer.OUTPUT, task.rank))
    _pass_on(task, builder, _take_across(task, builder))
    for peer in reversed(near):
        _take_carried(task, builder, peer)
    return builder.build()


def _send_across(task: Task, builder: Builder) -> None:
    for host in other_hosts(task):
        targets = task.layout.members[host]
        peer = carrier(task.layout, host, task.rank)
        if list(targets) == list(range(targets[0], targets[0] + len(targets))):
            builder.send(peer, Span(Buffer.INPUT, targets[0], len(targets)))
            continue
        first = builder.scratch(sections([task.rank * task.size + target for target in targets]))
        for step, target in enumerate(targets):
            builder.copy(Span(Buffer.INPUT, target), Span(Buffer.SCRATCH, first + step))
        builder.send(peer, Span(Buffer.SCRATCH, first, len(targets)))


def _take_across(task: Task, builder: Builder) -> dict[int, int]:
    """First scratch slot of the blocks of each rank that this one carries."""
    host_ranks = task.layout.members[task.layout.place(task.rank)[0]]
    came: dict[int, int] = {}
    for source in carried(task.layout, task.rank):
        came[source] = builder.scratch(sections([source * task.size + target for target in host_ranks]))
        builder.receive(source, Span(Buffer.SCRATCH, came[source], len(host_ranks)))
    return came


def _pass_on(task: Task, builder: Builder, came: dict[int, int]) -> None:
    for peer in neighbours(task):
        local = task.layout.place(peer)[1]
        if not came:
            continue
        first = builder.scratch(sections([source * task.size + peer for source in came]))
        for step, slot in enumerate(came.values()):
            builder.copy(Span(Buffer.SCRATCH, slot + local), Span(Buffer.SCRATCH, first + step))
        builder.send(peer, Span(Buffer.SCRATCH, first, len(came)))
    own = task.layout.place(task.rank)[1]
    for source, slot in came.items():
        builder.copy(Span(Buffer.SCRATCH, slot + own), Span(Buffer.OUTPUT, source))


def _take_carried(task: Task, builder: Builder, peer: int) -> None:
    sources = carried(task.layout, peer)
    if not sources:
        return
    first = builder.scratch(sections([source * task.size + task.rank for source in sources]))
    builder.receive(peer, Span(Buffer.SCRATCH, first, len(sources)))
    for step, source in enumerate(sources):
        builder.copy(Span(Buffer.SCRATCH, first + step), Span(Buffer.OUTPUT, source))


def all_to_all_cost(task: Task) -> Cost:
    """H-1 + 2(m-1) messages, n-m + (m-1)(1+c) sections, of the ranks for which each is most."""
    layout, hosts = task.layout, len(task.layout.members)
    messages, sent = 0, 0
    for rank in range(task.size):
        local, held = len(layout.members[layout.place(rank)[0]]), len(carried(layout, rank))
        messages = max(messages, hosts - 1 + (local - 1) * (1 + (held > 0)))
        sent = max(sent, task.size - local + (local - 1) * (1 + held))
    most = max(len(ranks) for ranks in layout.members)
    return cost(int(most > 1) + int(hosts > 1), messages, sent)
