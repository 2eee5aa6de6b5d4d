"""Recursive doubling: pairs exchange whole vectors over doubling distances. Fewest rounds; for small messages.

Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in MPICH. IJHPCA 19(1), 2005.
"""

from __future__ import annotations

from byteps_like.collectives.schedules.builder import Cost, Task, cost, whole_vector
from byteps_like.collectives.schedules.schedule import RankSchedule


def all_reduce(task: Task) -> RankSchedule:
    """With p the largest power of two up to n: log2(p) exchanges of the whole vector.

    The n - p ranks too many give their vector to a neighbour first and get the result from it last. Rounds: log2(p),
    plus 2 if n > p; messages and vectors sent by a rank: log2(p), plus 1 if n > p. Both sides of an exchange compute
    the same sum, so all ranks have the same bits.
    """
    power = 1 << (task.size.bit_length() - 1)
    paired = 2 * (task.size - power)
    builder, vector = whole_vector(task, 1)
    if task.rank < paired and task.rank % 2:
        vector.send(task.rank - 1, 0)
        vector.receive(task.rank - 1, 0)
        return builder.build()
    if task.rank < paired:
        vector.reduce(task.rank + 1, 0)
    number = task.rank // 2 if task.rank < paired else task.rank - paired // 2
    distance = 1
    while distance < power:
        other = number ^ distance
        peer = 2 * other if other < paired // 2 else other + paired // 2
        vector.send(peer, 0)
        vector.reduce(peer, 0, final=2 * distance == power)
        distance *= 2
    if task.rank < paired:
        vector.send(task.rank + 1, 0)
    vector.settle()
    return builder.build()


def all_reduce_cost(task: Task) -> Cost:
    """log2(p) messages of the whole section, one more if n is not a power of two."""
    exchanges = task.size.bit_length() - 1
    uneven = task.size != 1 << exchanges
    return cost(exchanges + 2 * uneven, exchanges + uneven, exchanges + uneven)
