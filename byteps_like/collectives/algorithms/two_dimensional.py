"""2DH: all-to-all first among the ranks of a host, then among equal local ranks of all hosts, with runs of blocks.

Hwang et al.: Tutel: adaptive mixture-of-experts at scale. MLSys 2023, section 3.4. A rank sends (m-1) + (H-1) messages
for n-1, those between hosts m times as large; two stride copies make each one run in memory. For small blocks.
"""

from __future__ import annotations

from byteps_like.collectives.schedules.builder import Builder, Cost, Task, blocks, cost, sections
from byteps_like.collectives.schedules.schedule import Buffer, RankSchedule, Span


def why_unavailable(task: Task) -> str:
    """It needs a full grid of hosts by local ranks."""
    sizes = {len(ranks) for ranks in task.layout.members}
    if len(sizes) > 1:
        return "hosts have different numbers of ranks"
    if task.size > 1 and sizes == {1}:
        return "one rank on each host"
    return "all ranks share one host" if len(task.layout.members) == 1 < task.size else ""


def all_to_all(task: Task) -> RankSchedule:
    """H hosts of m ranks: 2 rounds, (m-1) + (H-1) messages, (m-1)H + (H-1)m sections; scratch four times the input.

    First copy: blocks for each local index behind one another. First exchange: within the host. Second copy: blocks for
    each host behind one another. Second exchange: among equal local ranks, straight into the output.
    """
    builder = blocks(task)
    staged = _exchange_inside(task, builder)
    _exchange_across(task, builder, staged)
    host, local = task.layout.place(task.rank)
    for peer in task.layout.members[host]:
        builder.copy(staged[task.layout.place(peer)[1]][host], Span(Buffer.OUTPUT, peer))
    assert staged[local][host] == Span(Buffer.INPUT, task.rank)
    return builder.build()


def _block(task: Task, source: int, target: int) -> int:
    return source * task.size + target


def _pack(builder: Builder, numbers: list[int], sources: list[Span]) -> Span:
    first = builder.scratch(sections(numbers))
    for step, source in enumerate(sources):
        builder.copy(source, Span(Buffer.SCRATCH, first + step))
    return Span(Buffer.SCRATCH, first, len(numbers))


def _exchange_inside(task: Task, builder: Builder) -> list[list[Span]]:
    """For each local rank of this host, where its blocks for this rank's local index are, one for each host."""
    hosts = task.layout.members
    host, local = task.layout.place(task.rank)
    count = len(hosts[host])
    staged: list[list[Span]] = [[] for _ in range(count)]
    staged[local] = [Span(Buffer.INPUT, ranks[local]) for ranks in hosts]
    for step in range(1, count):
        to = (local + step) % count
        column = [ranks[to] for ranks in hosts]
        numbers = [_block(task, task.rank, target) for target in column]
        builder.send(hosts[host][to], _pack(builder, numbers, [Span(Buffer.INPUT, target) for target in column]))
    for step in range(1, count):
        of = (local - step) % count
        peer = hosts[host][of]
        first = builder.scratch(sections([_block(task, peer, ranks[local]) for ranks in hosts]))
        builder.receive(peer, Span(Buffer.SCRATCH, first, len(hosts)))
        staged[of] = [Span(Buffer.SCRATCH, first + number) for number in range(len(hosts))]
    return staged


def _exchange_across(task: Task, builder: Builder, staged: list[list[Span]]) -> None:
    hosts = task.layout.members
    host, local = task.layout.place(task.rank)
    for step in range(1, len(hosts)):
        to = (host + step) % len(hosts)
        numbers = [_block(task, source, hosts[to][local]) for source in hosts[host]]
        builder.send(hosts[to][local], _pack(builder, numbers, [row[to] for row in staged]))
    for step in range(1, len(hosts)):
        sources = hosts[host - step]
        if list(sources) == list(range(sources[0], sources[0] + len(sources))):
            builder.receive(sources[local], Span(Buffer.OUTPUT, sources[0], len(sources)))
            continue
        first = builder.scratch(sections([_block(task, source, task.rank) for source in sources]))
        builder.receive(sources[local], Span(Buffer.SCRATCH, first, len(sources)))
        for number, source in enumerate(sources):
            builder.copy(Span(Buffer.SCRATCH, first + number), Span(Buffer.OUTPUT, source))


def all_to_all_cost(task: Task) -> Cost:
    """(m-1) + (H-1) messages, (m-1)H + (H-1)m sections."""
    hosts, local = len(task.layout.members), len(task.layout.members[0])
    rounds = int(hosts > 1) + int(local > 1)
    return cost(rounds, local - 1 + hosts - 1, (local - 1) * hosts + (hosts - 1) * local)
