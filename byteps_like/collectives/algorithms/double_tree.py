"""Double binary tree: two trees, each over half of the vector, in which the inner ranks of one are leaves of the other.

Sanders, Speck, Träff: Two-tree algorithms for full bandwidth broadcast, reduction and scan. Parallel Computing 35,
2009. A logarithm of rounds at nearly the ring's bytes: for middle sizes and many ranks. The halves stream through the
tree, as all steps depend on one another by prefix.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

from byteps_like.collectives.schedules.builder import Cost, Task, cost, whole_vector
from byteps_like.collectives.schedules.schedule import RankSchedule


@lru_cache(maxsize=64)
def _parents(count: int) -> dict[int, int]:
    """An in-order tree of labels 1..count whose odd labels are leaves: child -> parent.

    The root of a range is its label with the most trailing zeros.
    """
    parents: dict[int, int] = {}
    open_ranges = [(1, count, 0)]
    while open_ranges:
        low, high, above = open_ranges.pop()
        if low > high:
            continue
        shift = ((low - 1) ^ high).bit_length() - 1
        top = high >> shift << shift
        parents[top] = above
        open_ranges += [(low, top - 1, top), (top + 1, high, top)]
    return parents


def tree(count: int, which: int) -> tuple[dict[int, int], dict[int, list[int]]]:
    """Parent (-1 for the root) and children of every rank in tree 0 or 1.

    Tree 1 mirrors the ranks, or turns them by one if their number is odd: what was odd is then even.
    """
    if which == 0:
        ranks = list(range(count))
    else:
        ranks = (
            [count - 1 - rank for rank in range(count)]
            if count % 2 == 0
            else [(rank - 1) % count for rank in range(count)]
        )
    by_label = dict(enumerate(ranks, start=1))
    parent: dict[int, int] = {}
    children: dict[int, list[int]] = {rank: [] for rank in range(count)}
    for label, above in sorted(_parents(count).items()):
        parent[by_label[label]] = by_label[above] if above else -1
        if above:
            children[by_label[above]].append(by_label[label])
    return parent, children


def all_reduce(task: Task) -> RankSchedule:
    """Half t of the vector is reduced to the root of tree t and goes down again, both trees at once.

    2 floor(log2 n) rounds; a rank sends at most 4 messages of half the vector: 2 vectors, whatever n.
    """
    builder, vector = whole_vector(task, 2)
    trees = [tree(task.size, which) for which in (0, 1)]
    for half, (parent, children) in enumerate(trees):
        builder.stream = half
        below, above = children[task.rank], parent[task.rank]
        for number, child in enumerate(below):
            vector.reduce(child, half, final=above < 0 and number == len(below) - 1)
        if above >= 0:
            vector.send(above, half)
    for half, (parent, children) in enumerate(trees):
        builder.stream = half
        if parent[task.rank] >= 0:
            vector.receive(parent[task.rank], half)
        for child in children[task.rank]:
            vector.send(child, half)
    vector.settle()
    return builder.build()


def all_reduce_cost(task: Task) -> Cost:
    """At most 4 messages of half a section: a leaf's one, and an inner rank's one up and two down; fewer if n < 4."""
    n = task.size
    messages = {1: 0, 2: 2, 3: 3}.get(n, 4)
    return cost(2 * (n.bit_length() - 1), messages, Fraction(messages, 2))
