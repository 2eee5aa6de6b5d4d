"""Recursive halving and doubling for any number of ranks: the ring's bytes in a logarithm of rounds.

Rabenseifner: Optimization of collective reduction operations. ICCS 2004. There n is a power of two, or ranks are left
out; here a group of n ranks is cut in halves of ceil(n/2) and floor(n/2), and where they differ the rank without a
partner deals with the first one of the smaller half. Each rank is that first one at most once, so nobody waits long.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from byteps_like.collectives.schedules.builder import (
    Cost,
    Task,
    Vector,
    cost,
    part_for_each,
    part_of_each,
    whole_vector,
)
from byteps_like.collectives.schedules.schedule import Buffer, RankSchedule


class Level(NamedTuple):
    """One cut, as one position sees it: the chunks of both sides, and whom it deals with.

    `gives` are those who get this side's data in an all-gather, or give theirs in a reduce-scatter; `takes` is the one
    from whom it gets (all-gather), or to whom it gives (reduce-scatter), the other side's.
    """

    mine: tuple[int, int]
    others: tuple[int, int]
    gives: tuple[int, ...]
    takes: int


def levels(count: int, position: int) -> Iterator[Level]:
    """The cuts of positions [0, count) that contain `position`, the widest first."""
    low, high = 0, count
    while high - low > 1:
        middle = (low + high + 1) // 2
        left, right = (low, middle - low), (middle, high - middle)
        odd = left[1] > right[1]
        if position >= middle:
            partner = position - middle + low
            yield Level(right, left, (partner, middle - 1) if odd and position == middle else (partner,), partner)
            low = middle
        else:
            lonely = odd and position == middle - 1
            partner = middle if lonely else position - low + middle
            yield Level(left, right, () if lonely else (partner,), partner)
            high = middle


def halve(vector: Vector, members: Sequence[int], position: int, final_target: tuple[Buffer, int] | None) -> None:
    """Reduce-scatter among `members`: chunk `position` ends at its member, in `final_target` if that is given."""
    for level in levels(len(members), position):
        vector.send(members[level.takes], *level.others)
        last = level.mine[1] == 1
        for number, peer in enumerate(level.gives):
            if last and number == len(level.gives) - 1 and final_target is not None:
                vector.aim(position, final_target)
            vector.reduce(members[peer], *level.mine, final=last and number == len(level.gives) - 1)


def double(vector: Vector, members: Sequence[int], position: int) -> None:
    """All-gather among `members`, who hold one chunk each."""
    for level in reversed(list(levels(len(members), position))):
        for peer in level.gives:
            vector.send(members[peer], *level.mine)
        vector.receive(members[level.takes], *level.others)


def neighbours_first(count: int) -> tuple[int, ...]:
    """Ranks in the order in which the widest cut parts neighbours, so the largest messages go the shortest way."""

    def order(ranks: Sequence[int]) -> tuple[int, ...]:
        return tuple(ranks) if len(ranks) < 2 else order(ranks[0::2]) + order(ranks[1::2])

    return order(range(count))


def all_reduce(task: Task) -> RankSchedule:
    """Halving over n pieces, then doubling back.

    2 ceil(log2 n) rounds. Sends (n-1)/n of the vector in the first half; in the second half the same in the mean, at
    most half a vector more on a rank that serves two. Neighbouring ranks exchange the largest messages.
    """
    members = tuple(task.layout.by_host[number] for number in neighbours_first(task.size))
    builder, vector = whole_vector(task, task.size)
    halve(vector, members, members.index(task.rank), None)
    double(vector, members, members.index(task.rank))
    vector.settle()
    return builder.build()


def reduce_scatter(task: Task) -> RankSchedule:
    """Halving over the sections: ceil(log2 n) rounds and messages, n-1 sections. Scratch: n-1 sections at most."""
    builder, vector = part_for_each(task)
    halve(vector, range(task.size), task.rank, (Buffer.OUTPUT, 0))
    if task.size == 1:
        vector.aim(0, (Buffer.OUTPUT, 0))
        vector.settle()
    return builder.build()


def all_gather(task: Task) -> RankSchedule:
    """Doubling over the sections: ceil(log2 n) rounds, n-1 sections in the mean, n-1 + n//2 at most; no scratch."""
    builder, vector = part_of_each(task)
    vector.settle()
    double(vector, range(task.size), task.rank)
    return builder.build()


def _rounds(count: int) -> int:
    return (count - 1).bit_length()


@lru_cache(maxsize=1024)
def _doubling(count: int, position: int) -> tuple[int, int]:
    """Messages and chunks that a position sends while doubling."""
    cuts = list(levels(count, position))
    return sum(len(cut.gives) for cut in cuts), sum(len(cut.gives) * cut.mine[1] for cut in cuts)


def all_reduce_cost(task: Task) -> Cost:
    """2 ceil(log2 n) messages and 2(n-1)/n sections for powers of two, at most one message and n//2 pieces more."""
    n = task.size
    down = [len(list(levels(n, position))) for position in range(n)]
    up = [_doubling(n, position) for position in range(n)]
    messages = max(own + more for own, (more, _) in zip(down, up, strict=True))
    return cost(2 * _rounds(n), messages, Fraction(n - 1 + max(sent for _, sent in up), n))


def reduce_scatter_cost(task: Task) -> Cost:
    """ceil(log2 n) messages, n-1 sections."""
    return cost(_rounds(task.size), _rounds(task.size), task.size - 1)


def all_gather_cost(task: Task) -> Cost:
    """ceil(log2 n) messages and n-1 sections for powers of two, at most one message and n//2 sections more."""
    sent = [_doubling(task.size, position) for position in range(task.size)]
    return cost(_rounds(task.size), max(messages for messages, _ in sent), max(count for _, count in sent))
