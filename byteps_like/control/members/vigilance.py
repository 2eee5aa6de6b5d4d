"""When members are to be warned: of silence among them, and not too often."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from byteps_like.control.members.seats import Seat

WARNINGS_PER_SECOND = 8
"""Each goes to every member; more at a time would only bury the first."""


class WarningLimit:
    """Lets at most WARNINGS_PER_SECOND warnings through in any second; the others count too."""

    def __init__(self) -> None:
        self._warned: deque[float] = deque()

    def admits(self, now: float) -> bool:
        """Counts a warning at `now`; whether it may go out to members."""
        self._warned = deque((at for at in self._warned if at > now - 1.0), WARNINGS_PER_SECOND)
        admitted = len(self._warned) < WARNINGS_PER_SECOND
        self._warned.append(now)
        return admitted


class SilenceWatch:
    """Finds members that send no heartbeat. Marks them `quiet`, so that each silence is found once."""

    def __init__(self, seats: Collection[Seat], limit: float) -> None:
        """`seats`: present members. `limit`: seconds without a sign of life before a member counts as silent."""
        self._limit = limit
        self._audible = [seat for seat in seats if seat.suspected is None and not seat.quiet]

    def mark_silent(self, now: float) -> list[Seat]:
        """Those that have just become silent."""
        silent = [seat for seat in self._audible if seat.heard + self._limit <= now]
        for seat in silent:
            seat.quiet = True
        return silent

    def next_look(self, now: float) -> float:
        """When the next member may become silent, if none is heard until then."""
        return min((seat.heard for seat in self._audible if not seat.quiet), default=now) + self._limit
