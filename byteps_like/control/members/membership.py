"""Who is in the job: a synchronous state machine without a clock, threads or network of its own.

    forming --all have joined--> preparing --all servers ready--> running --all workers left--> forming | ended
                                      `------------ failure ----------'-----> forming (epoch + 1) | ended

Every call takes `now` (any monotonic seconds) and leaves its messages in `outbox`; `tick` acts on what time brings.
A member is suspected when its watch stream breaks and lost after `grace`; its heartbeats decide nothing, so a stopped
process (SIGSTOP), whose kernel keeps its connections, is never lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from byteps_like.control.members.diagnosis import STABLE_REPORTS, find_deadlock
from byteps_like.control.members.drains import (
    DrainOrder,
    DrainProgress,
    Drains,
    DrainState,
    check_server,
    check_worker,
    chosen,
    handing_over,
    has_that_rank,
    progress_of,
)
from byteps_like.control.members.elasticity import WorldLimits
from byteps_like.control.members.epoch import Epoch
from byteps_like.control.members.forming import Forming, Terms, terms_after
from byteps_like.control.members.past import JobState, Past
from byteps_like.control.members.seats import (
    JoinClaim,
    Notice,
    Seat,
    SeatState,
    Waiting,
    describe,
    describe_all,
    heartbeat_interval,
)
from byteps_like.control.members.timers import Timers
from byteps_like.control.members.vigilance import SilenceWatch, WarningLimit
from byteps_like.control.types import INCARNATION_BYTES, EventKind, Member, MemberRole, View, WatchEvent
from byteps_like.errors import (
    BytePSLikeError,
    DeadlineError,
    PeerLostError,
    RefusedError,
    StalledError,
    TooFewWorkersError,
)

_BROKEN = "the connection to the scheduler broke, and {}"
DIAGNOSIS_SECONDS = 1.0
"""From one look for a deadlock to the next."""


@dataclass(frozen=True)
class Patience:
    """How long to wait for what, in seconds."""

    grace: float = 0.7
    """For a member whose watch stream broke to come back."""
    first_watch: float = 5.0
    """For a member that has joined to open its watch stream."""
    returning: float = 3.0
    """For a worker that has left for the next world of an elastic job to join it: until then the others wait for it."""
    after_end: float = 1.0
    """For somebody to join again after all have left in order."""
    after_failure: float = 60.0
    """For somebody to join again after an epoch has failed."""
    prepare: float = 10.0
    """For the servers to take up a new epoch."""
    quiet: float = 5.0
    """Until a member that sends no heartbeat is mentioned."""


class TooEarlyError(Exception):
    """It isn't known yet whether there is a place."""


@dataclass
class _Declined:
    """A member that can't start, and who has been told."""

    member: Member
    text: str
    told: set[int] = field(default_factory=set)


@dataclass
class Membership:
    """The members of one job over all its epochs. Not thread-safe."""

    job: str
    incarnation: bytes = bytes(INCARNATION_BYTES)
    """In every world: epochs and member numbers mean nothing without it."""
    terms: Terms = field(default_factory=Terms)
    patience: Patience = field(default_factory=Patience)
    state: JobState = JobState.FORMING
    outbox: list[Notice] = field(default_factory=list)
    """Messages to send; whoever sends them empties it."""
    gone: list[str] = field(default_factory=list)
    """Ids of members that are no more; likewise."""
    touched: set[str] = field(default_factory=set)
    """Ids of members of which something has changed that the next scheduler must know; likewise."""

    def __post_init__(self) -> None:
        self.forming = Forming(self.terms)
        self.epoch: Epoch | None = None
        self.number = 0
        self.last_member = 0
        """The newest member number."""
        self.refusals: deque[str] = deque(maxlen=4)
        self._warnings = WarningLimit()
        self._declined: _Declined | None = None
        self._seats: dict[str, Seat] = {}
        self._suspects: dict[str, Seat] = {}
        self._returning: dict[str, Seat] = {}
        """Workers of the newest epoch that have left it for the next one."""
        self._drains = Drains()
        self._reported: BytePSLikeError | None = None
        self.linger = self.patience.after_end
        self._diagnosed = -DIAGNOSIS_SECONDS
        self._set_up_timers()

    def _set_up_timers(self) -> None:
        """In the order in which they act at the same tick: what tells a failure's cause best comes first."""
        self._timers = Timers()
        self._timers.derive(self._first_lost, self._lose_suspects)
        self._timers.derive(self._first_given_up, self._give_up)
        self._diagnosis = self._timers.add(self._diagnose)
        self._report = self._timers.add(self._believe_report)
        self._timers.derive(self._prepared_by, self._fail_unprepared)
        self._quiet_check = self._timers.add(self._mention_quiet)
        self._timers.derive(self._settled_by, self._form)
        self._timers.derive(self._formed_by, self._expire)
        self._end_timer = self._timers.add(lambda _now: self._end())

    def resume(self, past: Past, now: float) -> None:
        """Goes on where another scheduler has ended; before anything else. Nobody has a watch stream: members have
        `first_watch` seconds to come back. Those who run are told of their view once more, and those whose epoch has
        failed of that: their scheduler may have ended before it could."""
        self.number, self.last_member, self.state = past.number, past.last_member, past.state
        self.linger = past.linger
        if past.view is not None:
            seats = {seat.id: seat for seat in past.seats if seat.id in past.in_epoch}
            self.epoch = self._epoch_of(past.view, seats, now, past.failure)
            self.forming = Forming(terms_after(self.terms, self.epoch), self.epoch)
        for seat in past.seats:
            seat.joined = seat.heard = seat.suspected = now
            seat.resumed = True
            seat.deadline = None if seat.deadline is None else now + seat.claim.timeout
            if seat.returning:  # it can join when all others have come back, or are lost
                self._expect_back(seat, now + self.patience.first_watch, True)
            if seat.state not in (SeatState.LEFT, SeatState.LOST):
                self._seats[seat.id] = self._suspects[seat.id] = seat
            if seat.state is SeatState.WAITING:
                self.forming.add(seat)
        if self.epoch is not None:
            self._tell_again(now)
            self._tell_drained(self._seats.values())
        self._end_if_deserted(now)
        self._form_if_complete(now)

    def _tell_again(self, now: float) -> None:
        epoch = self._current()
        if self.state is JobState.PREPARING:
            self._send(epoch.servers(), epoch.view)
            self._run_if_ready(now)
        elif self.state is JobState.RUNNING:
            self._quiet_check.start(now + self._quiet())
            self._send(epoch.present(), epoch.view)
            if lost := [*epoch.lost(), *epoch.lost_servers()]:
                self._tell_loss(lost, f"{describe_all(lost)} died or left")
            self._tell_of_joiners()
            self._tell_left_out(list(self.forming.workers.values()))
        elif epoch.failure is not None:
            self._send([seat for seat in self._seats.values() if seat.id in epoch.seats], self._failed())

    # --- what members do ---

    def join(self, claim: JoinClaim, now: float) -> Seat:
        """Gives a member its number and lets it wait for the next epoch; a claim that is repeated keeps its seat.

        Raises RefusedError; those concerned are warned of the attempt. TooEarlyError while members of an earlier
        scheduler have yet to come back, whose place it may be.
        """
        if claim.id in self._seats:
            return self._seats[claim.id]
        self._check_nobody_declined(claim)
        try:
            self._admit(claim, now)
        except RefusedError as refusal:
            self.refusals.append(str(refusal))
            self._warn([seat for seat in self._seats.values() if _concerns(seat, claim)], str(refusal), now)
            raise
        self.last_member += 1
        seat = self._seat_for(claim, now)
        self.touched.add(seat.id)
        self._seats[seat.id] = self._suspects[seat.id] = seat
        self.forming.add(seat)
        self._take_back(claim, now, seat)
        if not seat.is_worker or self.forming.can_go_on():
            self._end_timer.stop()
        self._evict_excess()
        self._form_if_complete(now)
        return seat

    def _seat_for(self, claim: JoinClaim, now: float) -> Seat:
        is_worker = claim.member.role is MemberRole.WORKER
        elastic = self.forming.is_elastic(claim) if is_worker else self._is_elastic() and self.epoch is not None
        member = replace(claim.member, number=self.last_member, rank=-1 if elastic else claim.member.rank)
        in_lobby = elastic and self.state is not JobState.FORMING
        return Seat(claim, member, now, None if in_lobby else now + claim.timeout, suspected=now, heard=now)

    def _take_back(self, claim: JoinClaim, now: float, seat: Seat | None = None) -> None:
        """Who was in the newest epoch has come for the next, by `seat`, or will come once more; of anybody else those
        who run are told."""
        before = self.epoch.seats.get(claim.follows) if self.epoch is not None else None
        if before is not None:
            self._expect_back(before, now, returning=seat is None)
            if seat is not None and before.drained:
                self._drains.follow(before, seat)
        else:
            self._tell_of_joiners()
            if self.state is JobState.RUNNING and seat is not None and seat.is_worker:
                self._tell_left_out([seat])

    def _expect_back(self, seat: Seat, now: float, returning: bool) -> None:
        seat.returning = returning
        self.touched.add(seat.id)
        if returning:
            seat.deadline = now + self.patience.returning
            self._returning[seat.id] = seat
        else:
            self._returning.pop(seat.id, None)

    def decline(self, member: Member, why: str) -> None:
        """`member` can't start: workers who wait for the next world are refused, who come later once each."""
        spare = member.role is MemberRole.SERVER and self.forming.has_servers()
        if self.state is not JobState.FORMING or spare:
            return
        self._declined = _Declined(member, f"{describe(member)} can't start: {why}")
        for seat in list(self.forming.workers.values()):
            self._declined.told.add(seat.member.rank)
            self._dismiss(seat, RefusedError(self._declined.text, operation="join"))

    def watching(self, id: str, now: float) -> None:
        """The member's watch stream is open. Raises RefusedError for somebody who is no member (any more)."""
        seat = self.seat(id)
        seat.suspected, seat.heard, seat.watched, seat.resumed = None, now, True, False
        self._suspects.pop(id, None)
        self._form_if_complete(now)

    def broken(self, id: str, now: float) -> None:
        """The member's watch stream has ended without Leave."""
        seat = self._seats.get(id)
        if seat is None:
            return
        if seat.state is SeatState.OVER:
            self._forget(seat, now)
            self._form_if_complete(now)
        else:
            seat.suspected = now
            self._suspects[id] = seat

    def processes_ended(self, host_id: str, pids: Set[int], now: float) -> None:
        """Those of a host, as whoever has started them says: members among them that have not left are lost."""
        here = [seat for seat in self._seats.values() if seat.member.pid in pids and seat.member.host_id == host_id]
        if here:
            self._lose(here, now, "the process has ended")

    def ready(self, id: str, epoch: int, now: float) -> None:
        """A server has taken up `epoch`; when all have, the workers hear of the world."""
        seat = self.seat(id)
        if self.state is JobState.PREPARING and epoch == self.number:
            seat.ready = True
            self.touched.add(id)
            self._run_if_ready(now)

    def heartbeat(self, id: str, waiting: Waiting | None, stats: Mapping[str, float], now: float) -> None:
        """A sign of life. Two reports of the same wait in a row are taken as a thread that is really blocked."""
        seat = self.seat(id)
        seat.heard, seat.stats, seat.quiet = now, stats, False
        if waiting is not None and self.epoch is not None and waiting["name"] in self.epoch.given_up:
            waiting = None
        same = waiting is not None and _operation(waiting) == _operation(seat.waiting)
        seat.waiting_reports = seat.waiting_reports + 1 if same else int(waiting is not None)
        seat.waiting = waiting
        if seat.waiting_reports == STABLE_REPORTS and self.state is JobState.RUNNING:
            at = max(now, self._diagnosed + DIAGNOSIS_SECONDS)
            self._diagnosis.start(at)
            if at <= now:
                self._diagnosis.fire(now)

    def give_up(self, names: Iterable[str]) -> None:
        """Nobody waits for these any more, or will as soon as it is told; heartbeats may say otherwise for a while, and
        would be taken for a deadlock with what the ranks wait for next."""
        epoch = self._current()
        epoch.given_up.update(names)
        for seat in epoch.workers():
            if seat.waiting is not None and seat.waiting["name"] in epoch.given_up:
                seat.waiting, seat.waiting_reports = None, 0

    def report(self, id: str, epoch: int, error: BytePSLikeError, now: float) -> None:
        """A member saw a failure in this epoch. A lost peer is left to our own eyes for a moment, which know it by host
        and pid."""
        self.running(id)
        if epoch != self._current().number:
            return
        if not isinstance(error, PeerLostError):
            self.fail(error, now)
        elif self._report.at() is None:
            self._reported = error
            self._report.start(now + self.patience.grace + 0.2)

    def warn(self, id: str, epoch: int, error: BytePSLikeError, now: float) -> None:
        """A member warns everybody; a stalled round after a worker has left is a failure: nobody will complete it."""
        self.running(id)
        if epoch != self._current().number:
            return
        gone = self._current().left()
        if isinstance(error, StalledError) and gone and not self._current().can_lose_workers:
            text = f"{error}; {describe_all(gone)} left the job and will not contribute"
            self.fail(StalledError(text, peer=describe(gone[0].member), key=error.key, operation=error.operation), now)
        else:
            self._warn(self._current().present(), str(error), now)

    def leave(self, id: str, returning: bool, now: float, *, handed_over: bool = False) -> None:
        """A member goes in order; one that is `returning` keeps the job from ending. Others have all that a server kept
        which has `handed_over`."""
        seat = self._seats.get(id)
        if seat is None:
            return
        if seat.state is SeatState.RUNNING and not seat.is_worker:
            self._part_with(seat, handed_over, now)
        was_running, was_over = seat.state is SeatState.RUNNING and seat.is_worker, seat.state is SeatState.OVER
        self._expect_back(seat, now, returning and (was_running or was_over) and self._is_elastic())
        if returning and seat.state is SeatState.WAITING:
            self._take_back(seat.claim, now)
        self._become(seat, SeatState.LEFT)
        self._forget(seat, now)
        if was_running and self._current().take_leave() == 0:
            returning = returning or bool(self._current().awaited())
            self._reform(now, self.patience.after_failure if returning else self.patience.after_end)
        elif was_running:
            self._tell_of_joiners()
        else:
            self._form_if_complete(now)

    def drain(self, order: DrainOrder) -> DrainProgress:
        """Asks a member to leave in order, unless it was asked already: others take over from a server at once, or when
        they have the values that it keeps; a worker leaves between two steps. Raises RefusedError if there is no such
        member, or the job can't do without.
        """
        if self.state is JobState.ENDED:
            raise RefusedError(f"job {self.job!r} has ended", operation="drain")
        if order.number:
            return self._look_after(order)
        if self.epoch is None or self.state is not JobState.RUNNING:
            if (self.epoch is not None or self._seats) and not self._is_elastic():
                self._refuse_to_drain()
            if self._end_timer.at() is not None and self.linger == self.patience.after_end:
                raise RefusedError(f"all workers of job {self.job!r} have left", operation="drain")
            return DrainProgress(DrainState.FORMING)
        if not self._is_elastic():
            self._refuse_to_drain()
        if order.member and not has_that_rank(self.epoch, order):
            return DrainProgress(DrainState.FORMING)
        seat = chosen(self.epoch, order)
        if not seat.drained:
            self._check_can_leave(seat)
            if not seat.is_worker and (before := handing_over(self.epoch)):
                return DrainProgress(DrainState.BUSY, who=describe_all(before))
            self._ask_to_leave(seat, order.replace)
        return progress_of(seat, seat.member.number)

    def _check_can_leave(self, seat: Seat) -> None:
        if seat.is_worker:
            check_worker(self._current(), seat, len(self.forming.workers))
        else:
            check_server(self._current(), seat)

    def _refuse_to_drain(self) -> None:
        raise RefusedError(f"job {self.job!r} is not elastic: a member that leaves would end it", operation="drain")

    def _look_after(self, order: DrainOrder) -> DrainProgress:
        """What became of somebody who was asked, maybe by an earlier scheduler."""
        seats = [*self._seats.values(), *(self.epoch.seats.values() if self.epoch is not None else ())]
        found = next((seat for seat in seats if seat.member.number == order.number), None)
        seat = self._drains.find(order.number) or found
        if seat is not None:
            return progress_of(seat, order.number)
        if order.number <= self.last_member:
            return DrainProgress(DrainState.LEFT, order.number, f"member {order.number}")
        raise RefusedError(f"there has been no member {order.number}", operation="drain")

    def _ask_to_leave(self, seat: Seat, replace: bool) -> None:
        epoch = self._current()
        if not seat.is_worker and not epoch.keeps_values:
            self._become(seat, SeatState.LEAVING)
            epoch.take_loss([seat])
            self._tell_loss([seat], f"{describe(seat.member)} leaves, as it was asked to")
        seat.drained, seat.replaced = True, replace
        self.touched.add(seat.id)
        self._drains.add(seat)
        self._tell_drained([seat])

    def _tell_drained(self, seats: Iterable[Seat]) -> None:
        """Those of `seats` that were asked to leave, and are there."""
        for seat in seats:
            if seat.drained and seat.state in (SeatState.RUNNING, SeatState.LEAVING):
                text = f"{describe(seat.member)} was asked to leave"
                hands_over = not seat.is_worker and seat.state is SeatState.RUNNING
                self._send([seat], WatchEvent(EventKind.DRAIN, text, replace=seat.replaced, hand_over=hands_over))

    def _part_with(self, server: Seat, handed_over: bool, now: float) -> None:
        """A server that leaves: others take over what it has, or the epoch ends."""
        self._become(server, SeatState.LEFT)
        text = f"{describe(server.member)} left while epoch {self.number} was running"
        if self.state is JobState.RUNNING and self._current().take_loss([server], handed_over=handed_over):
            self._tell_loss([server], text)
        else:
            self.fail(PeerLostError(text), now)

    def fail(self, error: BytePSLikeError, now: float) -> None:
        """Ends the running epoch for everybody with `error`; the first failure counts."""
        if self.state not in (JobState.PREPARING, JobState.RUNNING):
            return
        epoch = self._current()
        epoch.failure = error
        self._report.stop()
        self._send(epoch.present(), self._failed())
        for seat in epoch.workers():
            if seat.state is SeatState.RUNNING:
                self._become(seat, SeatState.OVER)
        self._reform(now, self.patience.after_failure)

    # --- what time brings ---

    def tick(self, now: float) -> None:
        """Acts on all deadlines that have passed."""
        self._timers.tick(now)

    def next_deadline(self) -> float | None:
        """When `tick` has something to do again, if nothing else happens."""
        return self._timers.next()

    # --- what is known ---

    def seat(self, id: str) -> Seat:
        """The member with this id. Raises RefusedError."""
        seat = self._seats.get(id)
        if seat is None:
            raise RefusedError(f"not a member of job {self.job!r} (any more): join again")
        return seat

    def running(self, id: str) -> Seat:
        """The member, if its epoch is running. Raises the failure of its epoch, or RefusedError."""
        seat = self.seat(id)
        if seat.state is SeatState.OVER and self.epoch is not None and self.epoch.failure is not None:
            raise self.epoch.failure
        if seat.state is not SeatState.RUNNING:
            raise RefusedError(f"{describe(seat.member)} is {seat.state.value}: its epoch is not running")
        return seat

    @property
    def has_to_diagnose(self) -> bool:
        """True while `tick` has to look for a deadlock soon."""
        return self._diagnosis.at() is not None

    def seats(self) -> list[Seat]:
        """Everybody present, waiting or running."""
        return list(self._seats.values())

    def known(self, id: str) -> Seat | None:
        """The member with this id, also one that has left the newest epoch, or was lost; None: it is forgotten."""
        return self._seats.get(id) or (self.epoch.seats.get(id) if self.epoch is not None else None)

    def left(self) -> list[Seat]:
        """Workers that have left the running epoch."""
        return self.epoch.left() if self.epoch is not None and self.state is not JobState.FORMING else []

    # --- inside ---

    def _become(self, seat: Seat, state: SeatState) -> None:
        seat.state = state
        self.touched.add(seat.id)

    def _admit(self, claim: JoinClaim, now: float) -> None:
        if self.state is JobState.ENDED:
            raise RefusedError(f"job {self.job!r} has ended; {describe(claim.member)} is late")
        if any(seat.resumed and seat.member.role is claim.member.role for seat in self._suspects.values()):
            raise TooEarlyError
        if self.state is not JobState.FORMING:
            if self._is_elastic():
                self.forming.check(claim)
                return
            holder = self._current().holder(claim)
            if holder is not None and holder.suspected is not None:
                self._lose([holder], now, _BROKEN.format("another process has taken its rank"))
            else:
                self._current().check_late(claim, now)
        waiting = self.forming.holder(claim.member)
        if waiting is not None and waiting.suspected is not None and waiting.watched:
            self._lose([waiting], now, _BROKEN.format("another process has taken its rank"))
        self.forming.check(claim)

    def _check_nobody_declined(self, claim: JoinClaim) -> None:
        declined, rank = self._declined, claim.member.rank
        if declined is None or claim.member.role is not MemberRole.WORKER or rank < 0:
            return
        by_server = declined.member.role is MemberRole.SERVER
        back = self.forming.has_servers(claim.num_servers) if by_server else rank == declined.member.rank
        if back or rank in declined.told:
            self._declined = None  # they try again
            return
        declined.told.add(rank)
        raise RefusedError(declined.text, operation="join")

    def _evict_excess(self) -> None:
        for seat in self.forming.excess():
            count, by = self.forming.num_servers()
            refusal = RefusedError(f"{describe(seat.member)} is one too many: {by} has num_servers={count}")
            self._dismiss(seat, refusal)

    def _form_if_complete(self, now: float) -> None:
        if self.state is JobState.FORMING and self.forming.is_complete() and not self._is_in_doubt():
            self._form(now)

    def _is_in_doubt(self) -> bool:
        """Whether one of those who wait may have died."""
        return any(
            seat.state is SeatState.WAITING and (seat.watched or seat.resumed) for seat in self._suspects.values()
        )

    def _form(self, now: float) -> None:
        if flaw := self.forming.flaw():
            for seat in list(self.forming.seats()):
                self._dismiss(seat, RefusedError(flaw, operation="join"))
            return
        settings = self.forming.settings()
        workers, servers = self.forming.assign()
        self.number += 1
        view = View(
            self.job,
            self.number,
            tuple(seat.member for seat in workers),
            tuple(seat.member for seat in servers),
            settings,
            self.incarnation,
        )
        self.touched.update(self.epoch.seats if self.epoch is not None else ())
        self._returning.clear()
        self.epoch = self._epoch_of(view, {seat.id: seat for seat in [*workers, *servers]}, now)
        spares = self.forming.spares(self.epoch)
        self.forming = Forming(terms_after(self.terms, self.epoch), self.epoch)
        self._await_again(spares, None)
        self.refusals.clear()
        for seat in self.epoch.seats.values():
            self._become(seat, SeatState.RUNNING)
            seat.ready, seat.deadline = seat.is_worker, None
            seat.waiting, seat.waiting_reports = None, 0
        self.state = JobState.PREPARING
        self._report.stop()
        self._send(servers, view)
        self._run_if_ready(now)

    def _epoch_of(
        self, view: View, seats: dict[str, Seat], now: float, failure: BytePSLikeError | None = None
    ) -> Epoch:
        limits = WorldLimits.of(view.settings, view.size)
        least = 1 if limits is None else limits.least
        able = view.finishes_sums
        return Epoch(
            view, seats, now, failure, can_lose_workers=able, can_lose_servers=able, can_hand_over=able, least=least
        )

    def _is_elastic(self) -> bool:
        return self.forming.succession() is not None

    def _await_again(self, seats: Sequence[Seat], now: float | None) -> None:
        """These wait for the next world: from `now` on, or for as long as the epoch runs."""
        for seat in seats:
            seat.deadline = None if now is None else now + seat.claim.timeout
            self.touched.add(seat.id)
            self.forming.add(seat)

    def _tell_of_joiners(self) -> None:
        """Those who run, if others wait for whom there is room."""
        succession = self.forming.succession()
        if self.state is not JobState.RUNNING or succession is None:
            return
        epoch = self._current()
        room = epoch.staying < succession.limits.most
        joiners = [*(self.forming.workers.values() if room else ()), *self.forming.servers.values()]
        if joiners:
            text = f"{describe_all(joiners)} would join"
            self._send([seat for seat in self._current().present() if seat.is_worker],
                       WatchEvent(EventKind.JOINERS, text))  # fmt: skip

    def _tell_left_out(self, seats: list[Seat]) -> None:
        """Those who wait, if there is no room for them in the world that runs."""
        succession, epoch = self.forming.succession(), self._current()
        if succession is not None and epoch.staying >= succession.limits.most:
            self._send(seats, WatchEvent(EventKind.LEFT_OUT, f"there is no room beside the {epoch.staying} that run"))

    def _run_if_ready(self, now: float) -> None:
        epoch = self._current()
        if self.state is JobState.PREPARING and all(seat.ready for seat in epoch.seats.values()):
            self.state, epoch.started = JobState.RUNNING, now
            self._quiet_check.start(now + self._quiet())
            self._send(epoch.workers(), epoch.view)
            self._tell_drained(epoch.seats.values())
            self._tell_of_joiners()
            self._tell_left_out(list(self.forming.workers.values()))

    def _current(self) -> Epoch:
        assert self.epoch is not None
        return self.epoch

    def _reform(self, now: float, linger: float) -> None:
        """Back to forming: servers wait for the next epoch without joining again; the job ends if no worker comes."""
        self.state, self.linger = JobState.FORMING, linger
        self._quiet_check.stop()
        self._dismiss_drained(self._current())
        for seat in self._current().seats.values():
            if seat.state is SeatState.RUNNING and not seat.is_worker:
                self._become(seat, SeatState.WAITING)
                seat.claim = replace(seat.claim, world_size=0, num_servers=-1)
                if self._is_elastic():
                    seat.member = replace(seat.member, rank=-1)
                self.forming.add(seat)
        self._await_again([seat for seat in self.forming.workers.values() if seat.deadline is None], now)
        self._evict_excess()
        self._end_if_deserted(now)
        self._form_if_complete(now)

    def _dismiss_drained(self, epoch: Epoch) -> None:
        """A server that hands over what it keeps goes on with that in the next epoch; if that is lost with this one, it
        leaves now. If no other one is left, it stays."""
        goes_on = epoch.keeps_values and epoch.failure is None
        for seat in epoch.serving():
            if seat.drained and len(epoch.serving()) == 1:
                seat.drained = False
            elif seat.drained and not goes_on:
                self._become(seat, SeatState.LEAVING)
                self._tell_drained([seat])

    def _lost_at(self, seat: Seat) -> float:
        assert seat.suspected is not None
        return seat.suspected + (self.patience.grace if seat.watched else self.patience.first_watch)

    def _first_lost(self) -> float | None:
        return min((self._lost_at(seat) for seat in self._suspects.values()), default=None)

    def _lose_suspects(self, now: float) -> None:
        # A host that goes takes several members: name them together.
        lost = [seat for seat in self._suspects.values() if self._lost_at(seat) <= now + self.patience.grace / 4]
        self._lose(lost, now, _BROKEN.format(f"it did not come back within {self.patience.grace:g} s"))

    def _first_given_up(self) -> float | None:
        return min((seat.deadline for seat in self._returning.values() if seat.deadline is not None), default=None)

    def _give_up(self, now: float) -> None:
        """Who would return and hasn't come has died meanwhile: nobody else could see it."""
        late = [seat for seat in self._returning.values() if seat.deadline is not None and seat.deadline <= now]
        for seat in late:
            self._expect_back(seat, now, False)
            text = f"{describe(seat.member)} did not come to the next world within {self.patience.returning:g} s"
            self.refusals.append(text)
            self._warn(list(self.forming.seats()), text, now)
        self._end_if_deserted(now)
        self._form_if_complete(now)

    def _lose(self, seats: list[Seat], now: float, why: str) -> None:
        running = [seat for seat in seats if seat.state is SeatState.RUNNING]
        for seat in running:
            self._become(seat, SeatState.LOST)
        if running:
            self._go_on_without(running, why, now)
        for seat in seats:
            if seat.state is SeatState.WAITING:
                text = f"{describe(seat.member)} died while the world was forming"
                self.refusals.append(text)
                self._warn([other for other in self.forming.seats() if other is not seat], text, now)
            self._forget(seat, now)
        self._form_if_complete(now)

    def _go_on_without(self, lost: list[Seat], why: str, now: float) -> None:
        """If the epoch can; else it ends."""
        text = f"{describe_all(lost)} died: {why}"
        if self.state is JobState.RUNNING and self._current().take_loss(lost):
            self._tell_loss(lost, text)
            self._tell_of_joiners()
            if self._reported is not None and self._reported.peer in {_peer(seat) for seat in lost}:
                self._report.stop()
        else:
            self.fail(PeerLostError(text, peer=_peer(lost[0]), operation="watch"), now)

    def _tell_loss(self, lost: Sequence[Seat], text: str) -> None:
        ranks = tuple(seat.member.rank for seat in lost if seat.is_worker)
        servers = tuple(seat.member.rank for seat in lost if not seat.is_worker)
        self._send(self._current().present(), WatchEvent(EventKind.LOST, text, ranks=ranks, servers=servers))

    def _failed(self) -> WatchEvent:
        failure = self._current().failure
        return WatchEvent(EventKind.FAILED, str(failure), failure, epoch=self.number)

    def _forget(self, seat: Seat, now: float) -> None:
        if seat.state is not SeatState.LEFT:
            self._become(seat, SeatState.LOST)
        if self._seats.pop(seat.id, None) is not None:
            self.gone.append(seat.id)
            self.touched.add(seat.id)
        self._suspects.pop(seat.id, None)
        self.forming.remove(seat)
        self._end_if_deserted(now)

    def _end_if_deserted(self, now: float) -> None:
        """Starts the wait for somebody to join again, once no worker of a past epoch is there any more."""
        if self.state is not JobState.FORMING or self.epoch is None or self._end_timer.at() is not None:
            return
        if not self.forming.can_go_on() and all(seat.state is not SeatState.OVER for seat in self._seats.values()):
            self._end_timer.start(now + self.linger)

    def _believe_report(self, now: float) -> None:
        assert self._reported is not None
        self.fail(self._reported, now)

    def _prepared_by(self) -> float | None:
        return self._current().started + self.patience.prepare if self.state is JobState.PREPARING else None

    def _fail_unprepared(self, now: float) -> None:
        idle = [seat for seat in self._current().servers() if not seat.ready]
        self.fail(DeadlineError(f"{describe_all(idle)} did not start epoch {self.number}", operation="join"), now)

    def _diagnose(self, now: float) -> None:
        self._diagnosed = now
        if self.state is JobState.RUNNING:
            deadlock = find_deadlock(self._current().workers())
            if deadlock is not None:
                self.fail(deadlock, now)

    def _quiet(self) -> float:
        return max(self.patience.quiet, 3 * heartbeat_interval(0.0, len(self._current().seats)))

    def _mention_quiet(self, now: float) -> None:
        watch = SilenceWatch(self._current().present(), self._quiet())
        silent = watch.mark_silent(now)
        if silent:
            longest = now - min(seat.heard for seat in silent)
            text = f"no sign of life from {describe_all(silent)} for {longest:.1f} s: stopped, or out of reach"
            self._warn(self._current().present(), text, now)
        self._quiet_check.start(watch.next_look(now))

    def _dismiss(self, seat: Seat, error: BytePSLikeError) -> None:
        self._send([seat], WatchEvent(EventKind.FAILED, str(error), error))
        self.forming.remove(seat)
        self._become(seat, SeatState.OVER)

    def _settled_by(self) -> float | None:
        return None if self.state is not JobState.FORMING or self._is_in_doubt() else self.forming.settled_at()

    def _formed_by(self) -> float | None:
        return min((seat.deadline for seat in self.forming.seats() if seat.deadline is not None), default=None)

    def _expire(self, now: float) -> None:
        """The first wait that ends ends all: whoever waits hears the same list of who is missing. Unless they are
        enough for an elastic job."""
        if self._settled_by() is not None:
            self._form(now)
            return
        waiting = list(self.forming.seats())
        least, there = self.forming.too_few(), len(self.forming.workers)
        size = self.forming.world_size()[0]
        notes = f" (refused or lost: {'; '.join(self.refusals)})" if self.refusals else ""
        if self.state is not JobState.FORMING:
            notes += f"; epoch {self.number} is still running with {describe_all(self._current().present())}"
        missing = self.forming.missing() + notes
        for seat in waiting:
            waited = now - seat.joined
            text = f"the world of {size or '?'} workers did not form within {waited:.1f} s; missing: {missing}"
            error: BytePSLikeError = DeadlineError(text, operation="join", elapsed=waited)
            if least:
                text = f"min_workers={least}, but only {there} came within {waited:.1f} s{notes}"
                error = TooFewWorkersError(text, operation="join", elapsed=waited)
            self._send([seat], WatchEvent(EventKind.FAILED, str(error), error))
        for seat in waiting:
            self.forming.remove(seat)
            self._become(seat, SeatState.OVER)
        self.refusals.clear()

    def _end(self) -> None:
        self.state = JobState.ENDED
        failure = self.epoch.failure if self.epoch is not None else None
        text = f"job {self.job!r} has ended" + (
            f" after a failure: {failure}" if failure else ": all members have left"
        )
        self._send(self.seats(), WatchEvent(EventKind.ENDED, text, failure))
        self.forming = Forming(self.terms)
        for seat in self._seats.values():
            self._become(seat, SeatState.OVER)

    def _send(self, seats: list[Seat], message: View | WatchEvent) -> None:
        if seats:
            self.outbox.append(Notice(tuple(seat.id for seat in seats), message))

    def _warn(self, seats: list[Seat], text: str, now: float) -> None:
        """A warning for `seats`; when they come thick and fast, the rest only reaches the scheduler's own log."""
        to = tuple(seat.id for seat in seats) if self._warnings.admits(now) else ()
        self.outbox.append(Notice(to, WatchEvent(EventKind.WARNING, text)))


def _peer(seat: Seat) -> str:
    return f"{seat.member.role.value} {seat.member.rank}"


def _operation(waiting: Waiting | None) -> tuple[str, int] | None:
    return (waiting["name"], waiting["round"]) if waiting is not None else None


def _concerns(seat: Seat, claim: JoinClaim) -> bool:
    """The holder of the wanted rank is told of the attempt, and everybody who still waits for the world."""
    same = seat.member.role is claim.member.role and seat.member.rank == claim.member.rank >= 0
    return same or seat.state is SeatState.WAITING
