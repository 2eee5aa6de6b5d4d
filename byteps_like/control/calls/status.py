"""What the Status call tells, as a message and as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from byteps_like.control.calls import wire
from byteps_like.control.members.epoch import Epoch
from byteps_like.control.members.membership import Membership
from byteps_like.control.members.past import JobState
from byteps_like.control.members.seats import SeatState, Waiting, ranks_text
from byteps_like.control.types import Member
from byteps_like.control.v1 import scheduler_pb2 as pb

_STATES = {
    JobState.FORMING: pb.StatusReply.STATE_FORMING,
    JobState.PREPARING: pb.StatusReply.STATE_FORMING,
    JobState.RUNNING: pb.StatusReply.STATE_RUNNING,
    JobState.ENDED: pb.StatusReply.STATE_ENDED,
}
_NAMES = {
    pb.StatusReply.STATE_FORMING: "forming",
    pb.StatusReply.STATE_RUNNING: "running",
    pb.StatusReply.STATE_FAILED: "failed",
    pb.StatusReply.STATE_ENDED: "ended",
}


@dataclass(frozen=True)
class MemberStatus:
    """One member: `state` is waiting, running, suspected, over (its epoch failed) or left."""

    member: Member
    state: str
    heartbeat_age: float
    stats: Mapping[str, float]
    waiting: Waiting | None


@dataclass(frozen=True)
class JobStatus:
    """The job: `state` is forming, running, failed or ended; `text` says who is missing, or why it failed."""

    job: str
    epoch: int
    state: str
    world_size: int
    num_servers: int
    members: tuple[MemberStatus, ...]
    text: str
    settings: Mapping[str, str]
    uptime: float
    stats: Mapping[str, float]
    """Counters of the scheduler's own."""


def _gone(epoch: Epoch) -> str:
    """Who is no longer in an epoch that goes on."""
    texts = []
    ways = (("worker", "died", epoch.lost()), ("worker", "left", epoch.left()))
    for role, word, seats in (*ways, ("server", "died or left", epoch.lost_servers())):
        if seats:
            texts.append(f"{ranks_text(role, [seat.member.rank for seat in seats])} {word}")
    return "; ".join(texts)


def _catching_up(newcomers: int) -> str:
    """Those who will join."""
    return f"{newcomers} newcomer{'s catch' if newcomers > 1 else ' catches'} up before joining" if newcomers else ""


def status_to_wire(
    membership: Membership,
    now: float,
    uptime: float,
    stats: Mapping[str, float] = MappingProxyType({}),
    newcomers: int = 0,
) -> pb.StatusReply:
    """The whole state, for people and monitors; so many `newcomers` catch up before they join."""
    epoch, forming = membership.epoch, membership.forming
    state, text = _STATES[membership.state], ""
    world_size, num_servers = forming.world_size()[0], forming.num_servers()[0]
    if membership.state is JobState.FORMING:
        text = f"missing: {forming.missing()}"
        if epoch is not None and epoch.failure is None and not any(seat.is_worker for seat in forming.seats()):
            text = "all workers have left"
        elif epoch is not None and epoch.failure is not None:
            state, text = pb.StatusReply.STATE_FAILED, f"{epoch.failure}; {text}"
    elif epoch is not None:
        world_size, num_servers = len(epoch.view.workers), len(epoch.view.servers)
        text = "; ".join(filter(None, [_gone(epoch), _catching_up(newcomers)]))
    reply = pb.StatusReply(
        job=membership.job,
        epoch=membership.number,
        state=state,
        world_size=world_size,
        num_servers=num_servers,
        text=text,
        settings=epoch.view.settings if epoch is not None else forming.settings(),
        uptime_s=uptime,
        stats=stats,
    )
    for seat in membership.seats():
        waiting = wire.waiting_to_wire(seat.waiting) if seat.waiting is not None else None
        suspected = seat.suspected is not None and seat.state is SeatState.RUNNING
        entry = reply.members.add(
            member=wire.member_to_wire(seat.member),
            state="suspected" if suspected else seat.state.value,
            heartbeat_age_s=now - seat.heard,
            waiting=waiting,
        )
        entry.stats.update(seat.stats)
    return reply


def status_from_wire(reply: pb.StatusReply) -> JobStatus:
    """The same as plain data; members by role and rank, workers first."""
    members = sorted(
        (
            MemberStatus(
                member=wire.member_from_wire(entry.member),
                state=entry.state,
                heartbeat_age=entry.heartbeat_age_s,
                stats=dict(entry.stats),
                waiting=wire.waiting_from_wire(entry.waiting) if entry.HasField("waiting") else None,
            )
            for entry in reply.members
        ),
        key=lambda item: (item.member.role != "worker", item.member.rank),
    )
    return JobStatus(
        job=reply.job,
        epoch=reply.epoch,
        state=_NAMES.get(reply.state, "unknown"),
        world_size=reply.world_size,
        num_servers=reply.num_servers,
        members=tuple(members),
        text=reply.text,
        settings=dict(reply.settings),
        uptime=reply.uptime_s,
        stats=dict(reply.stats),
    )
