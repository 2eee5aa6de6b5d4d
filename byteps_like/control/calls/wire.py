"""Between the plain types and the messages of proto/byteps_like/v1."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields

from byteps_like.config_values import LARGEST_PARTITION, SMALLEST_PARTITION, parse
from byteps_like.control import bounds
from byteps_like.control.members.drains import DrainOrder, DrainProgress, DrainState
from byteps_like.control.members.seats import JoinClaim, Waiting
from byteps_like.control.types import Disagreement, EventKind, Member, MemberRole, Move, View, WatchEvent
from byteps_like.control.v1 import scheduler_pb2 as pb
from byteps_like.control.v1 import types_pb2 as types
from byteps_like.dtypes import DType
from byteps_like.errors import BytePSLikeError, InvalidArgumentError, from_code
from byteps_like.worker.api import (
    ON_LOSS,
    Declared,
    Meeting,
    MeetingPlace,
    Newcomer,
    Partition,
    Question,
    TensorSpec,
)

_ROLES = {MemberRole.WORKER: types.Member.ROLE_WORKER, MemberRole.SERVER: types.Member.ROLE_SERVER}
_ROLE_OF = {value: role for role, value in _ROLES.items()}
_AS_THEY_ARE = tuple(item.name for item in fields(Member) if item.name not in ("role", "urls", "native"))
_KINDS = {
    EventKind.FAILED: pb.Event.KIND_FAILED,
    EventKind.WARNING: pb.Event.KIND_WARNING,
    EventKind.ENDED: pb.Event.KIND_ENDED,
    EventKind.MOVES: pb.Event.KIND_MOVES,
    EventKind.RECORD: pb.Event.KIND_RECORD,
    EventKind.DISAGREEMENT: pb.Event.KIND_DISAGREEMENT,
    EventKind.QUESTION: pb.Event.KIND_QUESTION,
    EventKind.LOST: pb.Event.KIND_LOST,
    EventKind.JOINERS: pb.Event.KIND_JOINERS,
    EventKind.DRAIN: pb.Event.KIND_DRAIN,
    EventKind.NEWCOMER: pb.Event.KIND_NEWCOMER,
    EventKind.LEFT_OUT: pb.Event.KIND_LEFT_OUT,
}
_KIND_OF = {value: kind for kind, value in _KINDS.items()}
_DRAINS = {
    DrainState.FORMING: pb.DrainMemberReply.STATE_FORMING,
    DrainState.ASKED: pb.DrainMemberReply.STATE_ASKED,
    DrainState.LEFT: pb.DrainMemberReply.STATE_LEFT,
    DrainState.LOST: pb.DrainMemberReply.STATE_LOST,
    DrainState.BUSY: pb.DrainMemberReply.STATE_BUSY,
}
_DRAIN_OF = {value: state for state, value in _DRAINS.items()}


def error_to_wire(error: BytePSLikeError) -> types.Error:
    """The error with the fields it has."""
    return types.Error(
        code=int(error.code),
        text=str(error),
        rank=error.rank,
        peer=error.peer,
        key=error.key,
        operation=error.operation,
        elapsed_s=error.elapsed,
    )


def error_from_wire(message: types.Error) -> BytePSLikeError:
    """The typed exception."""
    names = {"rank": "rank", "peer": "peer", "key": "key", "operation": "operation", "elapsed_s": "elapsed"}
    fields = {ours: getattr(message, theirs) for theirs, ours in names.items() if message.HasField(theirs)}
    return from_code(message.code, message.text, **fields)


def member_to_wire(member: Member) -> types.Member:
    """One member."""
    plain = {name: getattr(member, name) for name in _AS_THEY_ARE}
    return types.Member(role=_ROLES[member.role], urls=member.urls, portable=not member.native, **plain)


def member_from_wire(message: types.Member) -> Member:
    """One member. Raises InvalidArgumentError for a role that is unknown here."""
    if message.role not in _ROLE_OF:
        raise InvalidArgumentError(f"unknown role {message.role} of a member on host {message.host}")
    plain = {name: getattr(message, name) for name in _AS_THEY_ARE}
    return Member(role=_ROLE_OF[message.role], urls=tuple(message.urls), native=not message.portable, **plain)


def view_from_wire(message: types.World) -> View:
    """One view."""
    return View(
        job=message.job,
        number=message.epoch,
        workers=tuple(member_from_wire(member) for member in message.workers),
        servers=tuple(member_from_wire(member) for member in message.servers),
        settings=dict(message.settings),
        incarnation=message.incarnation,
    )


def to_watch(message: View | WatchEvent, ids: Sequence[str] = ()) -> pb.WatchMessage:
    """What goes down the watch streams; with a view, the ids of its workers and servers."""
    if isinstance(message, View):
        view = types.World(
            job=message.job,
            epoch=message.number,
            workers=[member_to_wire(member) for member in message.workers],
            servers=[member_to_wire(member) for member in message.servers],
            settings=message.settings,
            member_ids=ids,
            incarnation=message.incarnation,
        )
        return pb.WatchMessage(world=view)
    error = error_to_wire(message.error) if message.error is not None else None
    moves = [move_to_wire(move) for move in message.moves]
    event = pb.Event(
        kind=_KINDS[message.kind], text=message.text, error=error, moves=moves, epoch=message.epoch,
        ranks=message.ranks, servers=message.servers, replace=message.replace, hand_over=message.hand_over,
    )  # fmt: skip
    if message.disagreement is not None:
        found = message.disagreement
        event.disagreement.CopyFrom(pb.Disagreement(text=found.text, places=_places_to_wire(found.places)))
    if message.question is not None:
        asked = message.question
        event.question.CopyFrom(pb.Question(number=asked.number, places=_places_to_wire(asked.places)))
    if message.newcomer is not None:
        event.newcomer.CopyFrom(pb.Newcomer(number=message.newcomer.number, address=message.newcomer.address))
    return pb.WatchMessage(event=event)


def event_from_wire(message: pb.Event) -> WatchEvent:
    """One event; a kind that is unknown here is a warning."""
    error = error_from_wire(message.error) if message.HasField("error") else None
    moves = tuple(move_from_wire(move) for move in message.moves)
    said, asked = message.disagreement, message.question
    found = Disagreement(_places_from_wire(said.places), said.text) if message.HasField("disagreement") else None
    question = Question(asked.number, _places_from_wire(asked.places)) if message.HasField("question") else None
    new = Newcomer(message.newcomer.number, message.newcomer.address) if message.HasField("newcomer") else None
    kind = _KIND_OF.get(message.kind, EventKind.WARNING)
    ranks, servers = tuple(message.ranks), tuple(message.servers)
    return WatchEvent(
        kind, message.text, error, moves, found, question, ranks, servers, message.epoch,
        replace=message.replace, hand_over=message.hand_over, newcomer=new,
    )  # fmt: skip


def move_to_wire(move: Move) -> pb.Move:
    """Where a tensor goes."""
    return pb.Move(tensor_id=move.tensor_id, to=_placement(move.new_id, move.partitions))


def move_from_wire(message: pb.Move) -> Move:
    """Where a tensor goes."""
    return Move(message.tensor_id, message.to.tensor_id, _partitions(message.to))


def _places_to_wire(places: Iterable[MeetingPlace]) -> list[pb.Place]:
    return [pb.Place(point=point, use=use) for point, use in places]


def _places_from_wire(places: Iterable[pb.Place]) -> tuple[MeetingPlace, ...]:
    return tuple((place.point, place.use) for place in places)


def claim_to_wire(claim: JoinClaim) -> pb.JoinRequest:
    """A request to join."""
    return pb.JoinRequest(
        member=member_to_wire(claim.member),
        world_size=claim.world_size,
        num_servers=claim.num_servers,
        settings=claim.settings,
        timeout_s=claim.timeout,
        member_id=claim.id,
        follows=claim.follows,
    )


def claim_from_wire(message: pb.JoinRequest) -> JoinClaim:
    """A request to join. Raises InvalidArgumentError, naming the field, for what can't be."""
    bounds.whole("bytes of the request", message.ByteSize(), 0, bounds.LARGEST_JOIN)
    bounds.whole("rank", message.member.rank, -1, bounds.MOST_MEMBERS - 1)
    bounds.whole("shards", message.member.shards, 0, bounds.MOST_SHARDS)
    bounds.finite("gbps", message.member.gbps, bounds.FASTEST_GBPS)
    if "partition_bytes" in message.settings:
        _partition_bytes(parse("partition_bytes", message.settings["partition_bytes"], int))
    for name in ("min_workers", "max_workers"):
        if name in message.settings:
            bounds.whole(name, parse(name, message.settings[name], int), 0, bounds.MOST_MEMBERS)
    return JoinClaim(
        id=message.member_id,
        member=member_from_wire(message.member),
        world_size=bounds.whole("world_size", message.world_size, 0, bounds.MOST_MEMBERS),
        num_servers=bounds.whole("num_servers", message.num_servers, -1, bounds.MOST_MEMBERS),
        settings=dict(message.settings),
        timeout=bounds.finite("timeout_s", message.timeout_s),
        follows=bounds.short("follows", message.follows),
    )


def _partition_bytes(value: int) -> None:
    bounds.whole("partition_bytes", value, SMALLEST_PARTITION, LARGEST_PARTITION)


def waiting_to_wire(waiting: Waiting) -> pb.Waiting:
    """What a worker is blocked on."""
    wanted = pb.Waiting(name=waiting["name"], round=waiting["round"], since_s=waiting.get("since", 0.0))
    if "started" in waiting:
        wanted.knows_started = True
        wanted.started.update(waiting["started"])
    return wanted


def waiting_from_wire(message: pb.Waiting) -> Waiting:
    """What a worker is blocked on. Raises InvalidArgumentError, naming the field, for what can't be."""
    since = bounds.finite("since_s", message.since_s)
    waiting = Waiting(name=message.name, round=message.round, since=since)
    if message.knows_started:
        waiting["started"] = dict(message.started)
    return waiting


def meeting_to_wire(meeting: Meeting) -> pb.Meeting:
    """What a rank waits for."""
    return pb.Meeting(
        point=meeting.point, use=meeting.use, what=meeting.what, says=meeting.says, data=meeting.data,
        ranks=meeting.ranks, blocks=meeting.blocks,
    )  # fmt: skip


def meeting_from_wire(message: pb.Meeting) -> Meeting:
    """What a rank waits for."""
    ranks = tuple(message.ranks)
    return Meeting(message.point, message.use, message.what, message.says, message.data, ranks, message.blocks)


def spec_to_wire(spec: TensorSpec) -> pb.TensorSpec:
    """A tensor's declaration."""
    return pb.TensorSpec(
        name=spec.name,
        dtype=int(spec.dtype),
        shape=spec.shape,
        priority=spec.priority,
        partition_bytes=spec.partition_bytes,
        codec=spec.codec,
        details=spec.details,
        row_bytes=spec.row_bytes,
        beside=spec.beside,
        on_loss=spec.on_loss,
        replicas=spec.replicas,
    )


def spec_from_wire(message: pb.TensorSpec) -> TensorSpec:
    """A tensor's declaration. Raises InvalidArgumentError for an unknown dtype, or an extent or size that can't be."""
    bounds.short("tensor's name", message.name)
    bounds.short("name of the tensor beside it", message.beside)
    bounds.short("codec", message.codec)
    if message.on_loss and message.on_loss not in ON_LOSS:
        raise InvalidArgumentError(f"tensor {message.name!r} has on_loss={message.on_loss!r}")
    bounds.short("details", message.details, bounds.LONGEST_DETAILS)
    bounds.whole("number of extents", len(message.shape), 0, bounds.MOST_EXTENTS)
    try:
        dtype = DType(message.dtype)
    except ValueError:
        raise InvalidArgumentError(f"tensor {message.name!r} has unknown dtype code {message.dtype}") from None
    if any(extent < 0 for extent in message.shape):
        raise InvalidArgumentError(f"tensor {message.name!r} has shape {list(message.shape)}")
    if message.partition_bytes:
        _partition_bytes(message.partition_bytes)
    spec = TensorSpec(
        message.name, dtype, tuple(message.shape), message.priority, message.partition_bytes, message.codec,
        row_bytes=message.row_bytes, beside=message.beside, on_loss=message.on_loss, replicas=message.replicas or 1,
        details=message.details,
    )  # fmt: skip
    bounds.whole(f"bytes of tensor {spec.name!r}", spec.nbytes, 0, bounds.LARGEST_TENSOR)
    bounds.whole(f"bytes of a row of tensor {spec.name!r}", spec.row_bytes, 0, spec.nbytes)
    return spec


def declared_to_wire(declared: Declared) -> pb.Placement:
    """Where a tensor lives."""
    return _placement(declared.tensor_id, declared.partitions)


def declared_from_wire(spec: TensorSpec, message: pb.Placement) -> Declared:
    """Where `spec` lives."""
    return Declared(spec, message.tensor_id, _partitions(message))


def _placement(tensor_id: int, partitions: Sequence[Partition]) -> pb.Placement:
    parts = [
        pb.Partition(key=part.key, offset=part.offset, nbytes=part.nbytes, server=part.server, shard=part.shard)
        for part in partitions
    ]
    return pb.Placement(tensor_id=tensor_id, partitions=parts)


def _partitions(message: pb.Placement) -> tuple[Partition, ...]:
    return tuple(Partition(part.key, part.offset, part.nbytes, part.server, part.shard) for part in message.partitions)


def drain_to_wire(order: DrainOrder) -> pb.DrainMemberRequest:
    """Who is to leave."""
    return pb.DrainMemberRequest(
        role=_ROLES[order.role], rank=order.rank, number=order.number, replace=order.replace, member=order.member
    )


def drain_from_wire(message: pb.DrainMemberRequest) -> DrainOrder:
    """Who is to leave. Raises InvalidArgumentError for a role that is unknown here."""
    if message.role not in _ROLE_OF:
        raise InvalidArgumentError(f"unknown role {message.role} of a member that is to leave")
    return DrainOrder(_ROLE_OF[message.role], message.rank, message.number, message.replace, message.member)


def drained_to_wire(progress: DrainProgress) -> pb.DrainMemberReply:
    """How that stands."""
    return pb.DrainMemberReply(state=_DRAINS[progress.state], number=progress.number, who=progress.who)


def drained_from_wire(message: pb.DrainMemberReply) -> DrainProgress:
    """How that stands; a state that is unknown here is one that lasts."""
    return DrainProgress(_DRAIN_OF.get(message.state, DrainState.ASKED), message.number, message.who)
