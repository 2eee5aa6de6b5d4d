"""Two levels: reduce within each host, across hosts among equal local ranks, and spread within each host again.

Thakur, Gropp: Improving the performance of collective operations in MPICH, 2003 (SMP case); the shape of NCCL's and
BlueConnect's (Cho et al., SysML 2019) decomposition. For links between hosts that are slower than those within: with m
ranks on every host a rank sends 1/m of the flat ring's bytes across.
"""

from __future__ import annotations

from fractions import Fraction

from byteps_like.collectives.algorithms.ring import gather_around, reduce_around
from byteps_like.collectives.schedules.builder import Cost, Task, Vector, cost, whole_vector
from byteps_like.collectives.schedules.schedule import Layout, RankSchedule


def why_unavailable(task: Task) -> str:
    """It takes two levels to have something to do."""
    hosts = len(task.layout.members)
    if hosts == 1 and task.size > 1:
        return "all ranks share one host"
    return "one rank on each host" if hosts == task.size > 1 else ""


def owners(layout: Layout) -> int:
    """Ranks of a host that take part across hosts: as many as the smallest host has."""
    return min(len(ranks) for ranks in layout.members)


def all_reduce(task: Task) -> RankSchedule:
    """With H hosts and s the ranks of the smallest one: the first s local ranks own 1/s of the vector each.

    Every rank sends each owner on its host its share; equal owners all-reduce it in a ring of H hosts; owners give the
    result to their host. 2(H-1) + 2 rounds. Across hosts an owner sends 2(H-1)/(H s) of the vector, others nothing.
    """
    host, local = task.layout.place(task.rank)
    hosts, share = len(task.layout.members), owners(task.layout)
    builder, vector = whole_vector(task, share * hosts)
    _reduce_inside(task, vector)
    if local < share:
        ring = [ranks[local] for ranks in task.layout.members]
        parts = [(local * hosts + piece, 1) for piece in range(hosts)]
        reduce_around(vector, ring, host, parts, complete=True)
        gather_around(vector, ring, host, parts)
    _spread_inside(task, vector)
    vector.settle()
    return builder.build()


def _reduce_inside(task: Task, vector: Vector) -> None:
    host, local = task.layout.place(task.rank)
    ranks, hosts, share = task.layout.members[host], len(task.layout.members), owners(task.layout)
    for step in range(1, len(ranks) + 1):
        owner = (local + step) % len(ranks)
        if owner < share and owner != local:
            vector.send(ranks[owner], owner * hosts, hosts)
    if local < share:
        for step in range(1, len(ranks)):
            final = hosts == 1 and step == len(ranks) - 1
            vector.reduce(ranks[local - step], local * hosts, hosts, final=final)


def _spread_inside(task: Task, vector: Vector) -> None:
    host, local = task.layout.place(task.rank)
    ranks, hosts, share = task.layout.members[host], len(task.layout.members), owners(task.layout)
    if local < share:
        for step in range(1, len(ranks)):
            vector.send(ranks[(local + step) % len(ranks)], local * hosts, hosts)
    for step in range(1, len(ranks) + 1):
        owner = (local - step) % len(ranks)
        if owner < share and owner != local:
            vector.receive(ranks[owner], owner * hosts, hosts)


def all_reduce_cost(task: Task) -> Cost:
    """Of an owner on the largest host (m ranks): (s-1) + 2(H-1) + (m-1) messages."""
    hosts, share = len(task.layout.members), owners(task.layout)
    most = max(len(ranks) for ranks in task.layout.members)
    across = 2 * (hosts - 1)
    rounds = across + 2 * (most > 1)
    sent = Fraction(share - 1 + most - 1, share) + Fraction(across, hosts * share)
    other = int(most > share)  # no owner: it sends its whole vector, in parts
    return cost(rounds, max(share - 1 + across + most - 1, other * share), max(sent, Fraction(other)))


def across_cost(task: Task) -> Fraction:
    """Sections that a rank sends to other hosts: 2(H-1)/(H s)."""
    hosts = len(task.layout.members)
    return Fraction(2 * (hosts - 1), hosts * owners(task.layout))
