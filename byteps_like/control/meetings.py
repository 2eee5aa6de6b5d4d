"""Finds out that ranks mean different things by one operation, from what they have waited for too long. Pure.

Operations of single tensors meet by name, those without a name by their order; both are counted per process set. What
a rank means by one is part of the name under which its data travels, so those who mean different things wait for each
other, and never get anything wrong. Ranks report what they have waited for longer than a moment.
"""

from __future__ import annotations

from collections.abc import Sequence

from byteps_like.control.types import Disagreement
from byteps_like.worker.api import Meeting


class Meetings:
    """What the ranks of one epoch wait for. As large as what is in flight."""

    def __init__(self) -> None:
        self._by_rank: dict[int, dict[str, Meeting]] = {}

    def report(self, rank: int, waiting: Sequence[Meeting]) -> list[Disagreement]:
        """`rank` waits for these, and has for a moment. Which of them can't come about, since another rank is at the
        same place and means something else."""
        self._by_rank[rank] = {one.point: one for one in waiting}
        found = [self._compare(one) for one in waiting]
        failed = [one for one in found if one is not None]
        for one in failed:
            for others in self._by_rank.values():
                if one.point in others and others[one.point].use == one.use:
                    del others[one.point]
        return failed

    def _compare(self, own: Meeting) -> Disagreement | None:
        who: dict[str, list[int]] = {}
        says: dict[str, str] = {}
        for rank in sorted(self._by_rank):
            other = self._by_rank[rank].get(own.point)
            if other is not None and other.use == own.use:
                who.setdefault(other.data, []).append(rank)
                says[other.data] = other.says
        if len(who) < 2:
            return None
        sides = ", ".join(f"{_ranks(ranks)} called {says[data]}" for data, ranks in who.items())
        text = f"{own.what}: the ranks disagree: {sides}; all ranks must make the same calls with the same arguments"
        return Disagreement(own.point, own.use, text)


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
