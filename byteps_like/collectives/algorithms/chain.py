"""Pipelined chain: the vector streams from rank to rank, each forwarding what has come so far. For large messages.

Every link carries the vector once, so beyond the first segments the time is that of one transfer, whatever n.
Hosts follow one another in the chain, so that each is entered and left once.
"""

from __future__ import annotations

from byteps_like.collectives.schedules.builder import Cost, Task, cost, from_root, to_root
from byteps_like.collectives.schedules.schedule import RankSchedule


def order(task: Task) -> list[int]:
    """The chain: the root, the rest of its host, the other hosts."""
    root_host = task.layout.place(task.root)[0]
    count = len(task.layout.members)

    def key(rank: int) -> tuple[int, bool, int]:
        return ((task.layout.place(rank)[0] - root_host) % count, rank != task.root, rank)

    return sorted(range(task.size), key=key)


def broadcast(task: Task) -> RankSchedule:
    """n-1 hops; each rank but the last sends one message, the vector. No scratch."""
    builder, vector = from_root(task, 1)
    chain = order(task)
    place = chain.index(task.rank)
    if place:
        vector.receive(chain[place - 1], 0)
    if place + 1 < task.size:
        vector.send(chain[place + 1], 0)
    vector.settle()
    return builder.build()


def reduce(task: Task) -> RankSchedule:
    """The broadcast backwards, adding on the way: n-1 hops, one message of the vector from each. Scratch: a vector."""
    builder, vector = to_root(task, 1)
    chain = order(task)
    place = chain.index(task.rank)
    if place + 1 < task.size:
        vector.reduce(chain[place + 1], 0, final=place == 0)
    if place:
        vector.send(chain[place - 1], 0)
    else:
        vector.settle()
    return builder.build()


def chain_cost(task: Task) -> Cost:
    """n-1 hops, one message of the section."""
    return cost(task.size - 1, *(int(task.size > 1),) * 2)
