"""What a scheduler has decided, as records: written before anybody is told of it, and read by the next one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from byteps_like.control.calls import wire
from byteps_like.control.calls.rpc import NotAnsweredError
from byteps_like.control.members.membership import Membership
from byteps_like.control.members.past import JobState, Past
from byteps_like.control.members.seats import Seat, SeatState
from byteps_like.control.placing.declarations import Declarations, PlacedTensor
from byteps_like.control.records.records import Records
from byteps_like.control.types import Move
from byteps_like.control.v1 import records_pb2 as pb
from byteps_like.control.v1 import types_pb2 as types
from byteps_like.errors import CorruptError, RefusedError, SystemCallError

_JOB, _VIEW, _PLACING = "job", "view", "placing"
_SEAT, _TENSOR, _USES, _MOVES = "seat/", "tensor/", "uses/", "moves/"

Record = TypeVar("Record", bound=Message)
State = TypeVar("State", JobState, SeatState)


class RuleEndedError(NotAnsweredError):
    """This scheduler can't store what it decides, or ends: its callers wait for the next one."""


@dataclass(frozen=True)
class PastTable:
    """Of the declarations of a job."""

    partition_bytes: int = 0
    weights: tuple[float, ...] = ()
    next_tensor: int = 0
    tensors: tuple[PlacedTensor, ...] = ()
    uses: Mapping[int, Sequence[int]] = field(default_factory=dict)
    moves: tuple[tuple[str, tuple[Move, ...]], ...] = ()
    """Each with why."""


@dataclass
class Decisions:
    """What is there to write, beside the membership."""

    table: Declarations | None = None
    epoch: int = 0
    """Of all of this."""
    partition_bytes: int = 0
    weights: Sequence[float] = ()
    moves: list[tuple[str, tuple[Move, ...]]] = field(default_factory=list)
    """Of this epoch."""


class Journal:
    """Of one job. Not thread-safe."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._known = records.load()
        self._stale: set[str] = set()
        """Records of an epoch that is over."""
        self._moves, self._viewed = 0, 0
        self.has_ended = False
        """The last scheduler has brought its job to an end."""

    def past(self) -> tuple[bytes, Past, PastTable] | None:
        """The job's incarnation, its members and tensors, as the last scheduler has left them; None: there was none, or
        its job has ended. Raises CorruptError for records that make no sense."""
        if _JOB not in self._known:
            return None
        job = _read(pb.JobRecord, self._known[_JOB], _JOB)
        if job.state == JobState.ENDED:
            self.has_ended = True
            self._forget_all()
            return None
        return job.incarnation, self._members(job), self._table(job.epoch)

    def check(self) -> None:
        """Raises RuleEndedError if another scheduler may rule by now: then nobody may be told anything."""
        try:
            self._records.check()
        except (SystemCallError, RefusedError) as error:
            raise RuleEndedError(str(error)) from error

    def write(self, membership: Membership, decisions: Decisions) -> None:
        """All that has changed since the last time. Raises RuleEndedError where it can't: then nobody may be told."""
        changes = dict.fromkeys(self._stale) | dict(self._of_members(membership))
        self._stale.clear()
        if decisions.table is not None:
            changes |= self._of_tensors(decisions.table, decisions)
        changed = {name: content for name, content in changes.items() if self._known.get(name) != content}
        if not changed:
            self.check()
            return
        try:
            self._records.commit(changed)
        except (SystemCallError, RefusedError) as error:
            raise RuleEndedError(str(error)) from error
        for name, content in changed.items():
            if content is None:
                self._known.pop(name, None)
            else:
                self._known[name] = content

    # --- members ---

    def _of_members(self, membership: Membership) -> Iterable[tuple[str, bytes | None]]:
        epoch = membership.epoch
        failure = None if epoch is None or epoch.failure is None else wire.error_to_wire(epoch.failure)
        job = pb.JobRecord(
            incarnation=membership.incarnation, last_member=membership.last_member, epoch=membership.number,
            state=membership.state.value, failure=failure, linger_s=membership.linger,
        )  # fmt: skip
        yield _JOB, job.SerializeToString()
        if epoch is not None and epoch.number != self._viewed:
            self._viewed = epoch.number
            yield _VIEW, wire.to_watch(epoch.view).world.SerializeToString()
        for id in membership.touched:
            seat = membership.known(id)
            in_epoch = epoch is not None and id in epoch.seats
            yield f"{_SEAT}{id}", None if seat is None else _seat_to_record(seat, in_epoch).SerializeToString()
        membership.touched.clear()

    def _members(self, job: pb.JobRecord) -> Past:
        records = [_read(pb.SeatRecord, content, name) for name, content in self._all(_SEAT)]
        seats = sorted((_seat_from_record(record) for record in records), key=lambda seat: seat.member.number)
        view = None
        if _VIEW in self._known:
            view = wire.view_from_wire(_read(types.World, self._known[_VIEW], _VIEW))
            self._viewed = view.number
        return Past(
            state=_state(JobState, job.state, _JOB),
            number=job.epoch,
            last_member=job.last_member,
            seats=seats,
            in_epoch=frozenset(record.claim.member_id for record in records if record.in_epoch),
            view=view,
            failure=wire.error_from_wire(job.failure) if job.HasField("failure") else None,
            linger=job.linger_s,
        )

    # --- tensors ---

    def _of_tensors(self, table: Declarations, decisions: Decisions) -> dict[str, bytes | None]:
        changes: dict[str, bytes | None] = {}
        placing = pb.PlacingRecord(
            partition_bytes=decisions.partition_bytes, weights=decisions.weights, next_tensor=table.next_id,
            epoch=decisions.epoch,
        )  # fmt: skip
        changes[_PLACING] = placing.SerializeToString()
        for number in table.touched:
            placed = table.placed(number)
            changes[f"{_TENSOR}{number}"] = None if placed is None else _tensor_to_record(placed).SerializeToString()
        for member in table.users:
            ids = table.uses(member)
            changes[f"{_USES}{member}"] = pb.UsesRecord(tensor_ids=ids).SerializeToString() if ids else None
        for number, (why, moves) in enumerate(decisions.moves):
            if number >= self._moves:
                changes[f"{_MOVES}{number}"] = _moves_to_record(why, moves).SerializeToString()
        changes |= {f"{_MOVES}{number}": None for number in range(len(decisions.moves), self._moves)}
        self._moves = len(decisions.moves)
        table.touched.clear()
        table.users.clear()
        return changes

    def _table(self, epoch: int) -> PastTable:
        placing = _read(pb.PlacingRecord, self._known.get(_PLACING, b""), _PLACING)
        if placing.epoch != epoch:
            self._stale = {name for name in self._known if name.startswith((_PLACING, _TENSOR, _USES, _MOVES))}
            return PastTable()
        moves = sorted((int(name.removeprefix(_MOVES)), content) for name, content in self._all(_MOVES))
        self._moves = len(moves)
        tensors = [_tensor_from_record(_read(pb.TensorRecord, content, name)) for name, content in self._all(_TENSOR)]
        return PastTable(
            placing.partition_bytes,
            tuple(placing.weights),
            placing.next_tensor,
            tuple(sorted(tensors, key=lambda one: one.first.tensor_id)),
            {
                int(name.removeprefix(_USES)): list(_read(pb.UsesRecord, content, name).tensor_ids)
                for name, content in self._all(_USES)
            },
            tuple(_moves_from_record(_read(pb.MovesRecord, content, _MOVES)) for _, content in moves),
        )

    def _all(self, prefix: str) -> list[tuple[str, bytes]]:
        return [(name, content) for name, content in self._known.items() if name.startswith(prefix)]

    def _forget_all(self) -> None:
        self._records.commit(dict.fromkeys(self._known))
        self._known.clear()


def _read(kind: type[Record], content: bytes, name: str) -> Record:
    try:
        return kind.FromString(content)
    except DecodeError as error:
        raise CorruptError(f"the scheduler's record {name!r} makes no sense: {error}") from None


def _state(kind: type[State], text: str, name: str) -> State:
    try:
        return kind(text)
    except ValueError as error:
        raise CorruptError(f"the scheduler's record {name!r} makes no sense: {error}") from None


def _seat_to_record(seat: Seat, in_epoch: bool) -> pb.SeatRecord:
    return pb.SeatRecord(
        claim=wire.claim_to_wire(seat.claim), member=wire.member_to_wire(seat.member), state=seat.state.value,
        ready=seat.ready, in_epoch=in_epoch, has_deadline=seat.deadline is not None, returning=seat.returning,
        drained=seat.drained, replaced=seat.replaced,
    )  # fmt: skip


def _seat_from_record(record: pb.SeatRecord) -> Seat:
    """Its times don't count."""
    deadline = 0.0 if record.has_deadline else None
    claim, member = wire.claim_from_wire(record.claim), wire.member_from_wire(record.member)
    state = _state(SeatState, record.state, _SEAT)
    return Seat(
        claim, member, 0.0, deadline, state, ready=record.ready, returning=record.returning, drained=record.drained,
        replaced=record.replaced,
    )  # fmt: skip


def _tensor_to_record(placed: PlacedTensor) -> pb.TensorRecord:
    return pb.TensorRecord(
        spec=wire.spec_to_wire(placed.first.spec), first=wire.declared_to_wire(placed.first),
        newest=wire.declared_to_wire(placed.newest), moved=placed.moved,
    )  # fmt: skip


def _tensor_from_record(record: pb.TensorRecord) -> PlacedTensor:
    spec = wire.spec_from_wire(record.spec)
    first, newest = wire.declared_from_wire(spec, record.first), wire.declared_from_wire(spec, record.newest)
    return PlacedTensor(first, newest, tuple(record.moved))


def _moves_to_record(why: str, moves: Sequence[Move]) -> pb.MovesRecord:
    return pb.MovesRecord(why=why, moves=[wire.move_to_wire(move) for move in moves])


def _moves_from_record(record: pb.MovesRecord) -> tuple[str, tuple[Move, ...]]:
    return record.why, tuple(wire.move_from_wire(move) for move in record.moves)
