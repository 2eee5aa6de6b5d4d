"""The Scheduler service: membership, declarations and barriers behind gRPC. Lives on one event loop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from typing import Any

from google.protobuf.message import Message

from byteps_like.config_clock import FailureClock
from byteps_like.control import bounds
from byteps_like.control.calls import wire
from byteps_like.control.calls.journal import Decisions, Journal, PastTable, RuleEndedError
from byteps_like.control.calls.newcomers import Newcomers
from byteps_like.control.calls.rpc import NotAnsweredError, Stream, Unary, Write
from byteps_like.control.calls.status import status_to_wire
from byteps_like.control.members.barriers import Barriers
from byteps_like.control.members.epoch import Epoch
from byteps_like.control.members.mailbox import Mailbox
from byteps_like.control.members.meetings import Meetings
from byteps_like.control.members.membership import Membership, TooEarlyError
from byteps_like.control.members.past import JobState, Past
from byteps_like.control.members.seats import Notice, Seat, SeatState, describe_all, ranks_text
from byteps_like.control.placing.declarations import Declarations
from byteps_like.control.placing.placement import Placer, usual_partition
from byteps_like.control.placing.racks import owner_weights
from byteps_like.control.placing.rates import CardRates, CardReport
from byteps_like.control.placing.weights import check_replan
from byteps_like.control.types import Disagreement, EventKind, Move, View, WatchEvent
from byteps_like.control.v1 import scheduler_pb2 as pb
from byteps_like.errors import BytePSLikeError, DeadlineError, InvalidArgumentError, MismatchError, StalledError
from byteps_like.timeline.orders import RecordingOrder
from byteps_like.worker.api import Answer

log = logging.getLogger(__name__)

_LINGER = 0.2
"""Seconds between the end of the job and the end of the scheduler, for the last messages to be read."""

_TIMER_SLACK = 0.03
"""Seconds of changes after which the timer is set once, however many members come and go at a time."""


_LEVELS = {
    EventKind.FAILED: logging.ERROR,
    EventKind.WARNING: logging.WARNING,
    EventKind.LOST: logging.WARNING,
    EventKind.QUESTION: logging.DEBUG,
}


class SchedulerService:
    """Handlers of all methods. Time is `loop.time()`."""

    def __init__(
        self,
        membership: Membership,
        *,
        watch_rates: bool = False,
        journal: Journal | None = None,
        absence: float = FailureClock().absence,
    ) -> None:
        """`journal`: keeps what is decided, so that another scheduler can `resume`, for which members wait `absence`
        seconds; None: nothing is kept."""
        self.membership = membership
        self.failure: RuleEndedError | None = None
        """Why this scheduler has ended, though the job has not."""
        self.strangers: Callable[[], Mapping[str, int]] = dict
        """Counters of those whom the port has kept out."""
        self._journal = journal
        self._absence = 0.0 if journal is None else absence
        self._watch_rates = watch_rates
        self._rates: CardRates | None = None
        self.ended = asyncio.Event()
        self._started = time.monotonic()
        self._loop = asyncio.get_running_loop()
        self._boxes: dict[str, Mailbox] = {}
        self._followed = 0
        """The number of the view that the tables below follow."""
        self._servers_lost = 0
        self._declarations: Declarations | None = None
        self._meetings = Meetings()
        self._newcomers = Newcomers(membership, self._after)
        self._partition_bytes = 0
        self._weights: list[float] = []
        self._moves: list[tuple[str, tuple[Move, ...]]] = []
        """All of this epoch, with why."""
        self._barriers = Barriers()
        self._barrier_calls: dict[str, list[asyncio.Future[None]]] = {}
        self._stopped = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_update: asyncio.Handle | None = None

    def methods(self) -> Mapping[str, Unary | Stream]:
        """Handler of each method of the proto service."""
        calls: dict[str, Unary] = {
            "Join": self.join,
            "Ready": self.ready,
            "Heartbeat": self.heartbeat,
            "Barrier": self.barrier,
            "Declare": self.declare,
            "Meet": self.meet,
            "Replan": self.replan,
            "Report": self.report,
            "Leave": self.leave,
            "Decline": self.decline,
            "Status": self.status,
            "Names": self.names,
            "Record": self.record,
            "DrainMember": self.drain,
            "CatchUp": self._newcomers.catch_up,
            "Feed": self._newcomers.feed,
        }
        return {name: self._as_ruler(call) for name, call in calls.items()} | {"Watch": self.watch}

    def resume(self, past: Past, table: PastTable) -> None:
        """Goes on where the scheduler before has ended; before any call."""
        for seat in past.seats:
            if seat.state not in (SeatState.LEFT, SeatState.LOST):
                self._boxes[seat.id] = Mailbox(goes_on=True)
        self.membership.resume(past, self._loop.time())
        if past.view is not None and table.partition_bytes:
            self._resume_tables(past.view, table)
        self._after()

    def _resume_tables(self, view: View, table: PastTable) -> None:
        self._followed = view.number
        self._partition_bytes, self._weights = table.partition_bytes, list(table.weights)
        self._meetings.follow(view)
        self._barriers.follow(view)
        self._declarations = Declarations(view, self._placer())
        self._declarations.resume(table.tensors, table.uses, table.next_tensor)
        self._judge_losses()
        for why, moves in table.moves:
            self._tell_moves(moves, why)

    def end_rule(self, why: Exception) -> None:
        """Another scheduler may rule by now, or must: this one ends, and the job does not. Idempotent."""
        if self.failure is None and not self._stopped:
            log.error("this scheduler ends, and the job goes on: %s", why)
            self.failure = RuleEndedError(str(why))
            self.ended.set()

    def processes_ended(self, host_id: str, pids: Set[int]) -> None:
        """Whoever has started them says so: nobody waits for them to come back."""
        with suppress(RuleEndedError):
            self.membership.processes_ended(host_id, pids, self._loop.time())
            self._after()

    def stop(self) -> None:
        """Decides nothing any more: another one may."""
        self._stopped = True
        for handle in (self._timer, self._timer_update):
            if handle is not None:
                handle.cancel()

    async def join(self, request: pb.JoinRequest) -> pb.JoinReply:
        """Takes a claim; the view comes on the watch stream."""
        claim = wire.claim_from_wire(request)
        self._boxes.setdefault(claim.id, Mailbox())
        try:
            seat = self.membership.join(claim, self._loop.time())
        except TooEarlyError:
            self._drop_box(claim.id)
            raise NotAnsweredError("it is not known yet whether there is a place") from None
        except BytePSLikeError as error:
            log.warning("refused: %s", error)
            self._drop_box(claim.id)
            raise
        finally:
            self._after()
        return pb.JoinReply(
            incarnation=self.membership.incarnation, member_number=seat.member.number, absence_s=self._absence
        )

    async def watch(self, request: pb.WatchRequest, write: Write) -> None:
        """Sends what the member has not seen yet, and what comes, until it leaves."""
        id = request.member_id
        self._check_rule()
        self.membership.watching(id, self._loop.time())
        self._show_barriers(id, request.barriers)
        self._after()
        box = self._boxes[id]
        stream = box.open_stream()
        try:
            await box.send_from(request.seen, stream, write)
        finally:
            if box.is_open(stream) and not box.closed and not self._stopped:
                self.membership.broken(id, self._loop.time())
                self._after()

    async def ready(self, request: pb.ReadyRequest) -> pb.ReadyReply:
        """A server has taken up the epoch."""
        self.membership.ready(request.member_id, request.epoch, self._loop.time())
        self._after()
        return pb.ReadyReply()

    async def heartbeat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatReply:
        """A sign of life."""
        waiting = wire.waiting_from_wire(request.waiting) if request.HasField("waiting") else None
        stats = bounds.numbers(request.stats)
        self.membership.heartbeat(request.member_id, waiting, stats, self._loop.time())
        if self._watch_rates and "card_gbps" in stats and "card_duty" in stats:
            self._observe(request)
        if self.membership.outbox or self.membership.has_to_diagnose:
            self._after()
        return pb.HeartbeatReply()

    async def declare(self, request: pb.DeclareRequest) -> pb.DeclareReply:
        """Agrees on tensors; a mismatch fails the epoch for everybody."""
        seat = self._worker(request.member_id)
        specs = [wire.spec_from_wire(spec) for spec in request.specs]
        self._table().retire(seat.member.number, request.retired)
        try:
            declared = self._table().declare(seat.member.number, specs)
        except MismatchError as error:
            self.membership.fail(error, self._loop.time())
            self._after()
            raise
        self._judge_losses()
        self._store()
        return pb.DeclareReply(placements=[wire.declared_to_wire(item) for item in declared])

    async def meet(self, request: pb.MeetRequest) -> pb.MeetReply:
        """A rank waits; all workers hear of what ranks disagree on. Portable ones can't go on after that."""
        seat = self._worker(request.member_id)
        waiting = [wire.meeting_from_wire(one) for one in request.waiting]
        answer = Answer(request.question, tuple(request.begun)) if request.question else None
        seats = self.membership.epoch.workers() if self.membership.epoch is not None else []
        for found in self._meetings.report(seat.member.rank, waiting, answer):
            self._disagree(found, seats)
        asked = self._meetings.question()
        if asked is not None:
            to = [seat.id for seat in seats if seat.member.rank in asked[1]]
            text = f"ranks seem to wait for each other: {len(to)} are asked what they have begun"
            self.membership.outbox.append(Notice(tuple(to), WatchEvent(EventKind.QUESTION, text, question=asked[0])))
        self._after()
        return pb.MeetReply()

    def _disagree(self, found: Disagreement, seats: Sequence[Seat]) -> None:
        if all(seat.member.native for seat in seats):
            event = WatchEvent(EventKind.DISAGREEMENT, found.text, disagreement=found)
            to = [seat.id for seat in seats if not found.ranks or seat.member.rank in found.ranks]
            self.membership.give_up(found.given_up)
            self.membership.outbox.append(Notice(tuple(to), event))
        else:
            self.membership.fail(MismatchError(found.text, key=found.places[0][0]), self._loop.time())

    async def replan(self, request: pb.ReplanRequest) -> pb.ReplanReply:
        """A worker wants all tensors placed anew; they move when all workers know."""
        self._worker(request.member_id)
        moved = self._replan(request.why, request.partition_bytes, list(request.weights))
        self._after()
        return pb.ReplanReply(moved=moved)

    async def barrier(self, request: pb.BarrierRequest) -> pb.BarrierReply:
        """Answers when every worker has come."""
        own, name = self._worker(request.member_id).member, bounds.short("barrier's name", request.name)
        timeout = bounds.finite("timeout_s", request.timeout_s)
        self._check_nobody_left(name)
        for released in self._barriers.show(own.number, {name: request.number}):
            self._let_go(released)
        if self._barriers.is_over(name, request.number, own.number):
            return pb.BarrierReply()  # others may be at the next one
        if self._barriers.arrive(name, request.number, own.number):
            self._let_go(name)
            return pb.BarrierReply()
        call = self._loop.create_future()
        self._barrier_calls.setdefault(name, []).append(call)
        try:
            async with asyncio.timeout(timeout):
                await call
        except BytePSLikeError:  # a DeadlineError is a TimeoutError, too
            raise
        except TimeoutError:
            absent = ranks_text("worker", self._barriers.missing(name))
            text = f"barrier {name!r} was not reached by {absent} within {timeout:.1f} s"
            raise DeadlineError(text, rank=own.rank, operation="barrier", elapsed=timeout) from None
        finally:
            if not call.done() or call.cancelled():
                self._barriers.withdraw(name, own.number)
                self._forget_call(name, call)
        return pb.BarrierReply()

    async def report(self, request: pb.ReportRequest) -> pb.ReportReply:
        """A member saw a failure, or warns."""
        if self._declarations is not None:
            request.error.text = self._declarations.name_keys(request.error.text)
        error = wire.error_from_wire(request.error)
        act = self.membership.warn if request.warning else self.membership.report
        act(request.member_id, request.epoch, error, self._loop.time())
        self._after()
        return pb.ReportReply()

    async def leave(self, request: pb.LeaveRequest) -> pb.LeaveReply:
        """A member goes in order."""
        self.membership.leave(request.member_id, request.returning, self._loop.time(), handed_over=request.handed_over)
        self._after()
        return pb.LeaveReply()

    async def decline(self, request: pb.DeclineRequest) -> pb.DeclineReply:
        """A worker or a server can't start."""
        self.membership.decline(wire.member_from_wire(request.member), bounds.short("why", request.why))
        self._after()
        return pb.DeclineReply()

    async def status(self, request: pb.StatusRequest) -> pb.StatusReply:
        """What is known of the job and its members."""
        del request
        uptime = time.monotonic() - self._started
        return status_to_wire(
            self.membership, self._loop.time(), uptime, self.strangers(), newcomers=self._newcomers.count
        )

    async def names(self, request: pb.NamesRequest) -> pb.NamesReply:
        """What users call these tensors."""
        return pb.NamesReply(names=self._declarations.names(request.tensor_ids) if self._declarations else {})

    async def record(self, request: pb.RecordRequest) -> pb.RecordReply:
        """Tells all members to record a timeline, or to end that."""
        if request.order:
            RecordingOrder.from_text(request.order)
        present = self.membership.epoch.present() if self.membership.epoch is not None else []
        self.membership.outbox.append(
            Notice(tuple(seat.id for seat in present), WatchEvent(EventKind.RECORD, request.order))
        )
        self._after()
        return pb.RecordReply(members=len(present))

    async def drain(self, request: pb.DrainMemberRequest) -> pb.DrainMemberReply:
        """A member is to leave, or how that stands."""
        progress = self.membership.drain(wire.drain_from_wire(request))
        self._after()
        return wire.drained_to_wire(progress)

    # --- inside ---

    def _drop_box(self, id: str) -> None:
        self._boxes.pop(id).close()

    def _show_barriers(self, id: str, counts: Mapping[str, int]) -> None:
        seat = self.membership.seat(id)
        if counts and seat.is_worker and seat.state is SeatState.RUNNING:
            self._follow_view()
            for name in self._barriers.show(seat.member.number, counts):
                self._let_go(name)

    def _as_ruler(self, call: Unary) -> Unary:
        """The call, answered only while nobody else can rule."""

        async def answer(request: Any) -> Message:
            found = await call(request)
            self._check_rule()
            return found

        return answer

    def _check_rule(self) -> None:
        """Raises RuleEndedError where another scheduler may rule by now, as after this process was stopped."""
        if self._journal is None:
            return
        try:
            self._journal.check()
        except RuleEndedError as error:
            self.end_rule(error)
            raise

    def _refuse_to_decide(self) -> None:
        """What isn't stored any more, the next scheduler must be asked for."""
        if self._journal is not None:
            raise RuleEndedError("this scheduler ends")

    def _store(self) -> None:
        """What was decided: nobody is told before. Where it can't be stored this scheduler ends, and the job goes on
        until another one comes."""
        if self._journal is None:
            return
        if self.failure is not None:
            raise self.failure
        decisions = Decisions(self._declarations, self._followed, self._partition_bytes, self._weights, self._moves)
        try:
            self._journal.write(self.membership, decisions)
        except RuleEndedError as error:
            self.end_rule(error)
            raise

    def _let_go(self, name: str) -> None:
        """The barrier is complete."""
        for call in self._barrier_calls.pop(name, []):
            _resolve(call, None)

    def _forget_call(self, name: str, call: asyncio.Future[None]) -> None:
        calls = self._barrier_calls.get(name, [])
        if call in calls:
            calls.remove(call)
        if not calls:
            self._barrier_calls.pop(name, None)

    def _worker(self, id: str) -> Seat:
        seat = self.membership.running(id)
        if not seat.is_worker:
            raise InvalidArgumentError("only workers can declare tensors and enter barriers")
        self._follow_view()
        return seat

    def _observe(self, request: pb.HeartbeatRequest) -> None:
        """What a host has seen of its card; tensors are placed anew where that helps everybody."""
        seat, now = self.membership.seat(request.member_id), self._loop.time()
        if self.membership.state is not JobState.RUNNING or seat.state is not SeatState.RUNNING:
            return
        self._follow_view()
        view = self._view()
        if not view.servers or not all(worker.native for worker in view.workers):
            return
        self._rates = self._rates or CardRates(view, now)
        report = CardReport(request.stats["card_gbps"], request.stats["card_duty"], now)
        if self._rates.observe(seat.member.host_id, report):
            rates = {_host_name(view, id): round(rate, 3) for id, rate in self._rates.rates.items()}
            why = f"measured rates of the hosts' network cards (Gb/s): {rates}"
            log.warning("new weights of the servers: %s", why)
            self._replan(why, weights=owner_weights(view, self._rates.rates))

    def _table(self) -> Declarations:
        assert self._declarations is not None
        return self._declarations

    def _placer(self) -> Placer:
        view = self._view()
        parting = self._epoch().parting_servers() if self._followed == view.number else []
        lost = {seat.member.rank for seat in parting}
        weights = list(self._weights) or [float(max(server.shards, 1)) for server in view.servers]
        for rank in lost:
            weights[rank] = 0.0
        if not any(weights):  # those that are left had none; where nobody is left nothing will be placed
            weights = [float(rank not in lost or len(lost) == len(weights)) for rank in range(len(weights))]
        return Placer.of(view, self._partition_bytes, weights)

    def _judge_losses(self) -> None:
        """What the epoch can go on without, as tensors have been declared."""
        epoch, table = self._epoch(), self._table()
        epoch.can_lose_workers, epoch.can_lose_servers = table.can_lose_workers, table.can_lose_servers
        epoch.can_hand_over, epoch.keeps_values = table.can_hand_over, table.keeps_values

    def _replan(self, why: str, partition_bytes: int = 0, weights: Sequence[float] = ()) -> int:
        """Places all tensors anew and tells the workers; how many move. Raises InvalidArgumentError."""
        view, table = self._view(), self._table()
        check_replan(view, partition_bytes, weights)
        self._partition_bytes = partition_bytes or self._partition_bytes
        self._weights = list(weights) or self._weights
        moves = table.replan(self._placer())
        self._move(moves, why)
        return len(moves)

    def _move(self, moves: tuple[Move, ...], why: str) -> None:
        self._moves.append((why, moves))
        self._tell_moves(moves, why)

    def _tell_moves(self, moves: tuple[Move, ...], why: str) -> None:
        seats = self.membership.epoch.workers() if self.membership.epoch is not None else []
        self.membership.outbox.append(
            Notice(tuple(seat.id for seat in seats), WatchEvent(EventKind.MOVES, why, moves=moves))
        )

    def _epoch(self) -> Epoch:
        assert self.membership.epoch is not None
        return self.membership.epoch

    def _view(self) -> View:
        return self._epoch().view

    def _follow_view(self) -> None:
        """Has all tables follow the view in force."""
        view = self._view()
        if self._followed == view.number:
            return
        self._followed, self._rates, self._moves = view.number, None, []
        self._servers_lost = 0
        self._partition_bytes = usual_partition(view)
        self._weights = owner_weights(view)
        self._meetings.follow(view)
        for name in self._barriers.follow(view):
            self._let_go(name)
        self._place(view)

    def _place(self, view: View) -> None:
        """Those tensors that workers of `view` have declared before go where its placement has them."""
        if self._declarations is None:
            self._declarations = Declarations(view, self._placer())
            return
        self._declarations.follow(view)
        if moves := self._declarations.replan(self._placer()):
            self._move(moves, f"view {view.number} places tensors anew")

    def _check_nobody_left(self, name: str) -> None:
        gone = self.membership.left()
        if gone and not self._epoch().can_lose_workers:
            text = f"barrier {name!r} can't complete: {describe_all(gone)} left the job"
            raise StalledError(text, operation="barrier")

    def _after(self) -> None:
        """What follows every change: it is stored, messages go out, barriers that can't complete fail, the timer is
        set."""
        if self._stopped:
            self._refuse_to_decide()
            return
        self._follow_losses()
        self._store()
        for notice in self.membership.outbox:
            _log_notice(notice.message)
            epoch = self.membership.epoch
            encoded = wire.to_watch(notice.message, list(epoch.seats) if epoch else ()).SerializeToString()
            droppable = isinstance(notice.message, WatchEvent) and notice.message.kind is EventKind.WARNING
            for id in notice.to:
                if id in self._boxes:
                    self._boxes[id].put(encoded, droppable=droppable)
        self.membership.outbox.clear()
        for id in self.membership.gone:
            if id in self._boxes:
                self._boxes.pop(id).close()
        self.membership.gone.clear()
        self._leave_out_gone()
        self._fail_barriers()
        self._newcomers.follow_world()
        if self.membership.state is JobState.ENDED:
            self._loop.call_later(_LINGER, self.ended.set)
        if self._timer_update is None:
            self._timer_update = self._loop.call_later(_TIMER_SLACK, self._set_timer)

    def _follow_losses(self) -> None:
        """Of members that have died or left, if the epoch goes on without them: what only such workers use is let go
        of, and new tensors go to servers that live."""
        epoch, table = self.membership.epoch, self._declarations
        if epoch is None or table is None or epoch.number != self._followed:
            return
        if epoch.can_lose_workers:
            table.leave_out(epoch.gone())
        lost = len(epoch.parting_servers())
        if lost != self._servers_lost and self.membership.state is JobState.RUNNING:
            self._servers_lost = lost
            table.place_by(self._placer())

    def _leave_out_gone(self) -> None:
        """Nobody waits at barriers for a worker that has died or left, if the epoch goes on without it, nor do ranks
        wait for each other by what it said last."""
        epoch = self.membership.epoch
        if epoch is None or not epoch.can_lose_workers:
            return
        gone = epoch.gone()
        for name in self._barriers.leave_out(gone):
            self._let_go(name)
        if epoch.number == self._followed:
            self._meetings.leave_out({epoch.view.ranks[number] for number in gone})

    def _fail_barriers(self) -> None:
        if not self._barrier_calls:
            return
        epoch = self.membership.epoch
        failure: BytePSLikeError | None = epoch.failure if epoch is not None else None
        for name, calls in list(self._barrier_calls.items()):
            try:
                if failure is None:
                    self._check_nobody_left(name)
            except StalledError as error:
                failure = error
            if failure is not None:
                del self._barrier_calls[name]
                for call in calls:
                    _resolve(call, failure)

    def _set_timer(self) -> None:
        self._timer_update = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self.membership.next_deadline()
        if deadline is not None:
            self._timer = self._loop.call_at(deadline, self._tick)

    def _tick(self) -> None:
        self._timer = None
        with suppress(RuleEndedError):
            self.membership.tick(self._loop.time())
            self._after()


def _host_name(view: View, host_id: str) -> str:
    return next(member.host for member in [*view.servers, *view.workers] if member.host_id == host_id)


def _resolve(call: asyncio.Future[None], failure: BytePSLikeError | None) -> None:
    if call.done():
        return
    if failure is None:
        call.set_result(None)
    else:
        call.set_exception(failure)


def _log_notice(message: Any) -> None:
    if isinstance(message, View):
        log.info("epoch %d: %d workers, %d servers", message.number, message.size, len(message.servers))
    elif isinstance(message, WatchEvent):
        log.log(_LEVELS.get(message.kind, logging.INFO), "%s", message.text)
