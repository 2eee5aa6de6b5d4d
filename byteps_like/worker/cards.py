"""The network cards between which gradients travel, and how long the busiest of them takes. Plain arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ASSUMED = 10e9 / 8
"""Bytes per second of a card whose rate nobody knows, each way."""


@dataclass(frozen=True)
class NicLoad:
    """One rank's part of its host's card, or the card of a host with servers only. `rate`: bytes per second, each way.
    `share`: of what servers sum, how much they do behind this card."""

    is_rank: bool = True
    rate: float = ASSUMED
    share: float = 0.0


@dataclass(frozen=True)
class Cards:
    """All of a job. A card that sends and receives is as busy as in the direction that carries more."""

    all: tuple[NicLoad, ...]

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return sum(card.is_rank for card in self.all)

    @property
    def has_servers(self) -> bool:
        """Whether anything is summed by servers."""
        return any(card.share > 0 for card in self.all)

    def by_servers(self, up: float, down: float) -> float:
        """Seconds of the busiest, where each rank sends servers `up` bytes and `down` come back."""
        return self._time([card.share for card in self.all], up, down)

    def by_ranks(self, up: float, down: float) -> float:
        """The same where the ranks sum, in equal parts."""
        return self._time([card.is_rank / self.ranks for card in self.all], up, down)

    def gathered(self, nbytes: float) -> float:
        """The same where each rank sends all others its `nbytes`."""
        return max((self.ranks - 1) * nbytes / card.rate for card in self.all if card.is_rank)

    def _time(self, shares: Sequence[float], up: float, down: float) -> float:
        """A rank sends what isn't summed behind its own card, and to all others what is; and gets the reverse."""
        times = []
        for card, share in zip(self.all, shares, strict=True):
            own, others = float(card.is_rank) * (1 - share), (self.ranks - card.is_rank) * share
            times.append(max(own * up + others * down, own * down + others * up) / card.rate)
        return max(times)


def alike(ranks: int) -> Cards:
    """Of so many ranks, of which nothing is known, without servers."""
    return Cards((NicLoad(),) * ranks)
