"""Several rings at once, each over its own part of the vector and its own links.

Wang et al.: TopoOpt: co-optimizing network topology and parallelization strategy. NSDI 2023 ("TotientPerms").
Good where hosts have several network cards, or links that a single ring would leave idle.
"""

from __future__ import annotations

from fractions import Fraction
from math import gcd

from byteps_like.collectives.algorithms.ring import gather_around, reduce_around
from byteps_like.collectives.schedules.builder import Cost, Task, cost, whole_vector
from byteps_like.collectives.schedules.schedule import RankSchedule


def strides(task: Task) -> tuple[int, ...]:
    """The strides that the argument "1,5" names. Raises ValueError if it names none."""
    return tuple(int(part) for part in task.argument.split(","))


def why_unavailable(task: Task) -> str:
    """Ring i -> i + stride closes over all ranks only if stride and n have no common divisor."""
    try:
        wrong = [stride for stride in strides(task) if gcd(stride, task.size) != 1]
    except ValueError:
        return "it needs strides: multi_ring:1,5"
    return f"no ring of {task.size} ranks has stride {wrong[0]}" if wrong else ""


def all_reduce(task: Task) -> RankSchedule:
    """k rings of strides s1..sk; ring i carries the i-th of k parts of the vector, in n pieces.

    2(n-1) rounds; 2(n-1)k messages; 2(n-1)/n of the vector, 1/k of that on each of k links.
    """
    n, rings = task.size, strides(task)
    builder, vector = whole_vector(task, n * len(rings))
    for phase in (0, 1):
        for ring, stride in enumerate(rings):
            builder.stream = ring
            members = [step * stride % n for step in range(n)]
            parts = [(ring * n + piece, 1) for piece in range(n)]
            if phase == 0:
                reduce_around(vector, members, members.index(task.rank), parts, complete=True)
            else:
                gather_around(vector, members, members.index(task.rank), parts)
    vector.settle()
    return builder.build()


def all_reduce_cost(task: Task) -> Cost:
    """2(n-1)k messages, 2(n-1)/n sections."""
    n = task.size
    return cost(2 * (n - 1), 2 * (n - 1) * len(strides(task)), Fraction(2 * (n - 1), n))
