"""One member as the scheduler sees it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypedDict

from byteps_like.control.types import Member, MemberRole, View, WatchEvent


class Waiting(TypedDict, total=False):
    """What a blocked worker waits for: `round` of tensor `name`, for `since` seconds.

    `started` are its own unfinished operations: name -> newest round it has pushed.
    """

    name: str
    round: int
    since: float
    started: Mapping[str, int]


class SeatState(StrEnum):
    """Where a member stands."""

    WAITING = "waiting"  # for the next epoch to form
    RUNNING = "running"  # in the current epoch
    OVER = "over"  # its epoch has failed; it has not left yet
    LEAVING = "leaving"  # a server that was asked to go, and from which others have taken over
    LEFT = "left"
    LOST = "lost"


@dataclass(frozen=True)
class JoinClaim:
    """A request to join, and what the member believes about the job."""

    id: str
    member: Member
    world_size: int
    """0: not known to it."""
    num_servers: int
    """-1: not known to it."""
    settings: Mapping[str, str]
    timeout: float
    follows: str = ""
    """Id of the same process in the epoch before; empty: it was in none."""


@dataclass
class Seat:
    """One member: its claim, its state, and when it was last heard."""

    claim: JoinClaim
    member: Member
    joined: float
    deadline: float | None
    """When its wait for the world ends, or the others' wait for it if it is `returning`; None for a server that waits
    from an earlier epoch, and for a worker of an elastic job that waits while an epoch runs."""
    state: SeatState = SeatState.WAITING
    suspected: float | None = None
    """Since when it has no watch stream."""
    watched: bool = False
    """It has had one."""
    resumed: bool = False
    """It was a member of an earlier scheduler, and has yet to come back."""
    returning: bool = False
    """It has left, and will join again under another id."""
    drained: bool = False
    """It was asked to leave."""
    replaced: bool = False
    """So that another one takes its place."""
    ready: bool = False
    heard: float = 0.0
    quiet: bool = False
    """Its silence has been mentioned."""
    waiting: Waiting | None = None
    waiting_reports: int = 0
    """Heartbeats in a row that reported the same wait."""
    stats: Mapping[str, float] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """Names the member in all calls."""
        return self.claim.id

    @property
    def is_worker(self) -> bool:
        """True for a worker, False for a server."""
        return self.member.role is MemberRole.WORKER


@dataclass(frozen=True)
class Notice:
    """A message for the members with these ids."""

    to: tuple[str, ...]
    message: View | WatchEvent


HEARTBEATS_PER_SECOND = 200
"""Of all members together: more would be a load for the scheduler, and tell it nothing new."""


def heartbeat_interval(seconds: float, members: int) -> float:
    """Between two of one member's, which wants `seconds` and is one of `members`."""
    return max(seconds, members / HEARTBEATS_PER_SECOND)


def describe(member: Member) -> str:
    """The name in messages: "worker 2 (host a, pid 17)", or "a worker (…)" before it has a rank."""
    name = f"{member.role.value} {member.rank}" if member.rank >= 0 else f"a {member.role.value}"
    return f"{name} (host {member.host}, pid {member.pid})"


NAMED_AT_MOST = 8
"""Members listed in one message; a thousand names help nobody."""


def describe_all(seats: Iterable[Seat]) -> str:
    """All of them in one line, the first few by name."""
    members = [seat.member for seat in seats]
    text = ", ".join(describe(member) for member in members[:NAMED_AT_MOST])
    return text + (f" and {len(members) - NAMED_AT_MOST} more" if len(members) > NAMED_AT_MOST else "")


def ranks_text(role: str, ranks: Sequence[int]) -> str:
    """Ranks in messages: "worker 3" or "workers 0-2, 5"."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    text = ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)
    return f"{role}{'s' if len(ranks) > 1 else ''} {text}"
