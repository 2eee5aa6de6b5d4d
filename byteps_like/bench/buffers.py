"""What an operation of a benchmark works on, and what must be in it afterwards: whole numbers, exact in float32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from byteps_like.bench.plan import Case

_PERIOD = 1021


@dataclass(frozen=True)
class Buffers:
    """One rank's memory for a case; in place, one of the two is a part of the other or the other itself."""

    case: Case
    rank: int
    ranks: int
    source: torch.Tensor
    target: torch.Tensor

    @classmethod
    def make(cls, case: Case, rank: int, ranks: int, allocate: Callable[[int], torch.Tensor]) -> Buffers:
        """`allocate` gives a float32 tensor of so many elements."""
        count = case.elements(ranks)
        part = count // ranks
        own = slice(rank * part, (rank + 1) * part)
        larger = allocate(count)
        if case.operation == "reduce_scatter":
            return cls(case, rank, ranks, larger, larger[own] if case.in_place else allocate(part))
        if case.operation == "all_gather":
            return cls(case, rank, ranks, larger[own] if case.in_place else allocate(part), larger)
        return cls(case, rank, ranks, larger, larger if case.in_place else allocate(count))

    def fill(self) -> None:
        """What each rank gives: its rank plus a pattern. The target is filled first: it may lie in the source."""
        self.target.fill_(-1.0)
        self.source.copy_(pattern(self.source.numel(), self.rank))

    def wrong(self) -> int:
        """Elements of the target that are not what the operation should have left there."""
        expected = self._expected()
        return 0 if expected is None else int((self.target != expected).sum())

    def quiet(self) -> None:
        """Zeros, so that sums in place don't grow from call to call."""
        self.target.zero_()
        self.source.zero_()

    def _expected(self) -> torch.Tensor | None:
        count, ranks = self.case.elements(self.ranks), self.ranks
        part = count // ranks
        own = slice(self.rank * part, (self.rank + 1) * part)
        match self.case.operation:
            case "all_reduce":
                return _sum(count, ranks)
            case "reduce":
                return _sum(count, ranks) if self.rank == 0 else None
            case "reduce_scatter":
                return _sum(count, ranks)[own]
            case "all_gather":
                return torch.cat([pattern(part, other) for other in range(ranks)])
            case "broadcast":
                return pattern(count, 0)
            case "all_to_all":
                return torch.cat([pattern(count, other)[own] for other in range(ranks)])
            case "send_recv":
                return pattern(count, (self.rank - 1) % ranks)
        return None


def pattern(count: int, rank: int) -> torch.Tensor:
    """What rank `rank` gives."""
    return torch.arange(count, dtype=torch.float32).remainder_(_PERIOD).add_(rank)


def _sum(count: int, ranks: int) -> torch.Tensor:
    return pattern(count, 0).mul_(ranks).add_(sum(range(ranks)))
