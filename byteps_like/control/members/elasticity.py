"""Of how many workers the next world may be made, which of those who wait they are, and in which order. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from byteps_like.config_values import parse
from byteps_like.control.members.epoch import Epoch
from byteps_like.control.members.seats import Seat

SETTLING = 0.5
"""Of the time that a worker waits for a world. When so much has passed since the last one came, an elastic world forms
without those who are still missing: half a minute by default, in which a host starts its processes."""


@dataclass(frozen=True)
class WorldLimits:
    """How many workers an elastic job may have."""

    least: int
    most: int

    @classmethod
    def of(cls, settings: Mapping[str, str], size: int) -> WorldLimits | None:
        """As `settings` have them, in a job that was asked for `size` workers; None if it isn't elastic."""
        if not parse("elastic", settings.get("elastic", "no"), bool):
            return None
        least = parse("min_workers", settings.get("min_workers", "1"), int)
        most = parse("max_workers", settings.get("max_workers", "0"), int) or size
        return cls(max(least, 1), max(least, most, 1))


@dataclass(frozen=True)
class Succession:
    """Of an elastic job: how the workers that wait become the next world, after the epoch `before`, if there was one.

    Those who were in that epoch have what the next one begins with. They keep their order, and joiners come last, so
    rank 0 is one of them if there is any.
    """

    limits: WorldLimits
    size: int
    """That the job was asked for, 0: not known yet."""
    before: Epoch | None

    def chosen(self, waiting: Iterable[Seat]) -> list[Seat]:
        """The workers of the next world in order; who is left over is a spare."""
        seats = list(waiting)
        hosts = {host: order for order, host in enumerate(dict.fromkeys(seat.member.host_id for seat in seats))}

        def place(seat: Seat) -> tuple[int, int, int]:
            if (rank := self._rank_before(seat)) is not None:
                return (0, rank, 0)
            wanted = seat.claim.member.rank
            return (1, wanted, 0) if wanted >= 0 else (2, 0, hosts[seat.member.host_id])

        ordered = sorted(seats, key=lambda seat: (self._rank_before(seat) is None, seat.member.number))
        return sorted(ordered[: self.limits.most], key=place)

    def is_enough(self, waiting: Mapping[str, Seat]) -> bool:
        """A world could be made of them."""
        return len(waiting) >= self.limits.least and self.can_go_on(waiting.values())

    def is_complete(self, waiting: Mapping[str, Seat]) -> bool:
        """There is nobody else to wait for: all have come who were there before, or at first, as many as were asked
        for."""
        if not self.is_enough(waiting):
            return False
        if self.before is None:
            return 0 < min(self.size, self.limits.most) <= len(waiting)
        return not self.before.awaited()

    def can_go_on(self, waiting: Iterable[Seat]) -> bool:
        """Whether those who wait have something to do: after an epoch that ended in order, the job is done but for
        those who come back from it."""
        if self.before is None or self.before.failure is not None:
            return True
        return any(self._rank_before(seat) is not None for seat in waiting)

    def settled_at(self, waiting: Mapping[str, Seat]) -> float | None:
        """When the world forms of those who are there; None while they are too few."""
        if not self.is_enough(waiting):
            return None
        ends = [(seat.deadline, seat.claim.timeout) for seat in waiting.values() if seat.deadline is not None]
        return max((end - (1 - SETTLING) * timeout for end, timeout in ends), default=None)

    def missing(self, count: int) -> str:
        """Of whom `count` are there, in words."""
        awaited = [] if self.before is None else self.before.awaited()
        if count < self.limits.least:
            return f"{self.limits.least - count} of at least {self.limits.least} workers"
        return f"{len(awaited)} workers of the epoch before" if awaited else ""

    def _rank_before(self, seat: Seat) -> int | None:
        if self.before is None or not seat.claim.follows:
            return None
        old = self.before.seats.get(seat.claim.follows)
        return None if old is None or not old.is_worker else old.member.rank
