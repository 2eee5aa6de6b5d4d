"""Where a process stands among the workers: one immutable value per view, which is asked for in every round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property


@dataclass(frozen=True)
class Standing:
    """One worker's place in one view. In the next view ranks and sizes may be others; member numbers stay."""

    rank: int
    members: tuple[int, ...]
    """The workers' member numbers, by rank."""
    local_rank: int = 0
    """The rank among the workers of its host."""
    local_size: int = 1

    @property
    def size(self) -> int:
        """Number of workers."""
        return len(self.members)

    @property
    def member(self) -> int:
        """This worker's member number."""
        return self.members[self.rank]

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """All ranks, in order."""
        return tuple(range(len(self.members)))

    def members_of(self, ranks: Sequence[int]) -> tuple[int, ...]:
        """The member numbers of some ranks. Raises IndexError for one that isn't there."""
        return tuple(self.members[rank] for rank in ranks)

    def ranks_of(self, members: Sequence[int]) -> tuple[int, ...]:
        """The ranks of those of `members` that are there, ascending. Sorted once: every operation asks."""
        asked = tuple(members)
        if asked not in self._ranks_of:
            self._ranks_of[asked] = tuple(sorted(self._by_member[one] for one in asked if one in self._by_member))
        return self._ranks_of[asked]

    def among(self, members: Sequence[int]) -> Standing:
        """The same worker's place among those of `members` that are there. Raises ValueError if it is none of them."""
        there = self.members_of(self.ranks_of(members))
        return replace(self, rank=there.index(self.member), members=there)

    def as_told(self, local_rank: int, local_size: int) -> Standing:
        """The same, but for what the launcher has said of this host: -1 and 0 say nothing."""
        return replace(
            self,
            local_rank=self.local_rank if local_rank < 0 else local_rank,
            local_size=local_size or self.local_size,
        )

    @cached_property
    def _ranks_of(self) -> dict[tuple[int, ...], tuple[int, ...]]:
        return {}

    @cached_property
    def _by_member(self) -> dict[int, int]:
        return {member: rank for rank, member in enumerate(self.members)}


ALONE = Standing(0, (1,))
"""Of a world of one."""


class Stands(ABC):
    """Who stands somewhere among the workers: rank and sizes are those of `standing`, which each view replaces."""

    @property
    @abstractmethod
    def standing(self) -> Standing:
        """In the view in force."""

    @property
    def rank(self) -> int:
        """This worker's, in the view in force."""
        return self.standing.rank

    @property
    def size(self) -> int:
        """Number of workers in the view in force."""
        return self.standing.size

    @property
    def local_rank(self) -> int:
        """This worker's among those of its host."""
        return self.standing.local_rank

    @property
    def local_size(self) -> int:
        """Number of workers of its host."""
        return self.standing.local_size
