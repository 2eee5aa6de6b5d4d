"""What the next scheduler needs to know of a job's members, to go on where one ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from byteps_like.control.members.seats import Seat
from byteps_like.control.types import View
from byteps_like.errors import BytePSLikeError


class JobState(StrEnum):
    """Where the job stands."""

    FORMING = "forming"
    PREPARING = "preparing"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True)
class Past:
    """Of a Membership. Times don't count: they are another clock's."""

    state: JobState
    number: int
    """Of the newest epoch; 0: there was none."""
    last_member: int
    seats: Sequence[Seat]
    """Of all who wait, or were in the newest epoch."""
    in_epoch: frozenset[str]
    """Ids of the latter."""
    view: View | None
    failure: BytePSLikeError | None
    linger: float
    """Seconds for which a deserted job waits for somebody."""
