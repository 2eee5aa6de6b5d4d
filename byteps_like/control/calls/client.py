"""A member's line to the scheduler: synchronous calls, one background thread, and one verdict when the job fails."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

from byteps_like.config import Config
from byteps_like.control import bounds
from byteps_like.control.audience import Audience
from byteps_like.control.calls import wire
from byteps_like.control.calls.loop import control_loop
from byteps_like.control.calls.returning import is_returning, recall, remember
from byteps_like.control.calls.secret import load
from byteps_like.control.calls.session import Session
from byteps_like.control.calls.status import JobStatus, status_from_wire
from byteps_like.control.hosts.member import own_member
from byteps_like.control.members.drains import DrainOrder, DrainProgress
from byteps_like.control.members.seats import JoinClaim, Waiting
from byteps_like.control.types import Member, MemberRole, View, WatchEvent
from byteps_like.control.v1 import scheduler_pb2 as pb
from byteps_like.errors import BytePSLikeError, ConfigError, DeadlineError, NotInitializedError, ShutdownError
from byteps_like.timeline.orders import RecordingOrder
from byteps_like.worker.api import Answer, Declared, Dismissal, Meeting, Newcomer, TensorSpec

log = logging.getLogger(__name__)

T = TypeVar("T")
LEAVE_SECONDS = 1.5
CALL_SECONDS = 30.0
_BATCH, _BATCH_BYTES = 1024, 1 << 20
"""Tensors of one Declare, and bytes of their names."""


class ControlClient:
    """One member of the job. Thread-safe; every call may block but the ones that say so, and all end by themselves.

    After the job has failed, calls raise its error; `leave` never raises and takes at most two seconds.
    """

    def __init__(self, config: Config) -> None:
        """Raises ConfigError without a scheduler's address or a secret. Connects in `join`."""
        if not config.scheduler:
            raise ConfigError("no scheduler: set BYTEPS_LIKE_SCHEDULER=host:port, or use `byteps-like run`")
        self.config = config
        self.secret = load(config)
        self._loop = control_loop()
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._left = False
        self._events: Audience[Callable[[WatchEvent], None]] = Audience()
        self._retired: list[int] = []
        self._stats_source: Callable[[], Mapping[str, float]] = dict

    # --- joining and leaving ---

    def join(self, member: Member, timeout: float | None = None, waits: bool = True) -> View:
        """Blocks until the world has formed; `member` with rank -1 is given a rank (see `member`).

        If an elastic job has no room for it yet, it waits, or unless it `waits`, raises LeftOutError when the others'
        world has begun.
        Raises RefusedError (wrong secret, job, size, setting; duplicate; late) with who and why, DeadlineError naming
        who is missing after `timeout` (default: join_timeout), PeerLostError if the scheduler dies meanwhile.
        """
        with self._lock:
            if self._left:
                raise ShutdownError("this member has left the job")
            if self._session is not None:
                raise ConfigError("this client has already joined; create a new one")
            self._session = Session(
                self.config,
                self.secret,
                self._claim(member, timeout),
                self._on_event,
                lambda: self._stats_source(),
                waits=waits,
            )
        try:
            return self._loop.run(self._session.join())
        except BaseException:
            self.leave()
            raise

    @property
    def member(self) -> Member:
        """This member as the view in force has it, with its rank."""
        session = self._joined()
        if session.member is None:
            raise NotInitializedError("the world has not formed yet")
        return session.member

    @property
    def view(self) -> View:
        """The view in force: the newest that has come. Raises NotInitializedError before the first."""
        view = self._joined().view
        if view is None:
            raise NotInitializedError("the world has not formed yet")
        return view

    @property
    def rank(self) -> int:
        """This member's rank in the view in force."""
        return self.member.rank

    @property
    def changes(self) -> int:
        """How often the scheduler has said that others wait to join this job, or have died."""
        return self._session.changes if self._session is not None else 0

    @property
    def dismissal(self) -> Dismissal | None:
        """That this member was asked to leave, if it was."""
        return self._session.dismissal if self._session is not None else None

    @property
    def newcomers(self) -> Sequence[Newcomer]:
        """Those who would catch up before they join, in the order in which all workers hear of them."""
        return tuple(self._session.newcomers) if self._session is not None else ()

    @property
    def error(self) -> BytePSLikeError | None:
        """Why the job failed, or None."""
        return self._session.error if self._session is not None else None

    def leave(self, *, returning: bool = False, handed_over: bool = False) -> None:
        """Leaves in order and closes the connection; at most two seconds, never raises. Idempotent, also before join.

        A member that is `returning` keeps the job from ending when all have left; so does one that leaves in a block
        `returning()`, whose next client of this job says whom it follows. A server that has `handed_over` what it has
        kept is not missed.
        """
        returning = returning or is_returning()
        with self._lock:
            self._left = True
            session = self._session
        try:
            self._take_leave(session, returning, handed_over)
        finally:
            self._events.leave()  # who is told of a job keeps it in memory
            self._stats_source = dict

    def _take_leave(self, session: Session | None, returning: bool, handed_over: bool) -> None:
        if session is None or session.closed:
            return
        if is_returning():
            remember(self.config, session.known_as)
        try:
            self._loop.run(session.close(returning, LEAVE_SECONDS, handed_over))
        except (BytePSLikeError, OSError) as error:
            log.debug("leaving: %s", error)

    # --- what the scheduler tells ---

    def on_event(self, callback: Callable[[WatchEvent], None]) -> None:
        """Calls `callback` for every event on the control thread: it must not block. The first callback hears of what
        was before it, too."""
        self._events.join(callback)

    def next_view(self) -> View:
        """For a server: blocks until the next view has formed; it stays a member from one to the next.

        Raises ShutdownError when the job has ended, DeadlineError or PeerLostError as `join` does.
        """
        return self._loop.run(self._joined().next_view())

    def ready(self, view: View) -> None:
        """For a server: it serves `view`. The workers are told of it when all servers are ready."""
        session = self._joined()
        self._loop.run(session.call("Ready", pb.ReadyRequest(member_id=session.id, epoch=view.number), CALL_SECONDS))

    # --- what workers do ---

    def declare(self, specs: Sequence[TensorSpec]) -> list[Declared]:
        """Agrees on tensors with all ranks: where each one's partitions live. Raises MismatchError on every rank."""
        return [declared for batch in _batches(specs) for declared in self._declare(batch)]

    def retire(self, tensor_id: int) -> None:
        """This rank won't use the tensor's name any more: the scheduler hears of it with the next `declare`."""
        with self._lock:
            self._retired.append(tensor_id)

    def replan(self, why: str, *, partition_bytes: int = 0, weights: Sequence[float] = ()) -> int:
        """Has all tensors placed anew, with partitions of another size or by other weights of the servers (by rank).

        0 or nothing: as now. Returns how many move: each from its next round on before which all ranks know of it.
        Raises InvalidArgumentError for values that can't be, or if the job has portable workers or no servers.
        """
        session = self._joined()
        request = pb.ReplanRequest(member_id=session.id, partition_bytes=partition_bytes, weights=weights, why=why)
        reply: pb.ReplanReply = self._loop.run(session.call("Replan", request, CALL_SECONDS))
        return int(reply.moved)

    def feed(self, newcomer: int, feeders: str) -> None:
        """Tells this newcomer who sends it what the workers have; "": nobody does. Returns at once: where there is no
        scheduler the newcomer joins by itself."""
        session = self._session
        if session is not None and not session.closed and session.error is None:
            request = pb.FeedRequest(member_id=session.id, newcomer=newcomer, feeders=feeders)
            self._loop.submit(session.post("Feed", request))

    def barrier(self, name: str, timeout: float | None = None) -> None:
        """Blocks until every rank has called it with `name`. Raises DeadlineError naming who has not come.

        `timeout` defaults to stall_timeout. Concurrent calls on one rank need different names.
        """
        session = self._joined()
        seconds = self.config.stall_timeout if timeout is None else bounds.finite("timeout", timeout)
        number = session.barriers.get(name, 0)
        request = pb.BarrierRequest(member_id=session.id, name=name, timeout_s=seconds, number=number)
        end = time.monotonic() + seconds

        def renew() -> None:
            request.timeout_s = end - time.monotonic()
            if request.timeout_s <= 0:
                text = f"barrier {name!r}: the scheduler was out of reach for more than {seconds:.1f} s"
                raise DeadlineError(text, operation="barrier", elapsed=seconds)

        self._loop.run(session.call("Barrier", request, seconds + CALL_SECONDS, renew))
        session.barriers[name] = number + 1

    # --- what members tell ---

    def report(self, error: BytePSLikeError, epoch: int) -> None:
        """This member saw the job fail in this epoch: everybody gets the error, unless another one has begun. Returns
        at once; safe in event callbacks."""
        self._post(error, epoch, warning=False)

    def warn(self, error: BytePSLikeError, epoch: int) -> None:
        """Everybody logs this, as long as this epoch runs. Returns at once."""
        self._post(error, epoch, warning=True)

    def waiting(self, what: Waiting | None) -> None:
        """What this rank is blocked on, or None: rides on the next heartbeats. Returns at once."""
        session = self._session
        if session is not None:
            session.waiting = (what, time.monotonic()) if what is not None else None

    def meet(self, waiting: Sequence[Meeting], answer: Answer | None = None) -> None:
        """All that this rank has waited for longer than a moment. Returns at once."""
        session = self._session
        if session is None or session.closed or session.error is not None:
            return
        request = pb.MeetRequest(member_id=session.id, waiting=[wire.meeting_to_wire(one) for one in waiting])
        if answer is not None:
            request.question = answer.number
            request.begun.extend(answer.begun)
        self._loop.submit(session.post("Meet", request))

    def publish(self, source: Callable[[], Mapping[str, float]]) -> None:
        """`source` gives this member's counters for `status`: called at each heartbeat on the control thread."""
        self._stats_source = source

    # --- inside ---

    def _declare(self, specs: Sequence[TensorSpec]) -> list[Declared]:
        session = self._joined()
        with self._lock:
            retired, self._retired = self._retired, []
        wanted = [wire.spec_to_wire(spec) for spec in specs]
        request = pb.DeclareRequest(member_id=session.id, specs=wanted, retired=retired)
        reply: pb.DeclareReply = self._loop.run(session.call("Declare", request, CALL_SECONDS))
        return [wire.declared_from_wire(spec, item) for spec, item in zip(specs, reply.placements, strict=True)]

    def _claim(self, member: Member, timeout: float | None) -> JoinClaim:
        worker, config = member.role is MemberRole.WORKER, self.config
        told = worker or "world_size" in config.explicit
        return JoinClaim(
            id=secrets.token_hex(8),
            member=member,
            world_size=config.world_size if told else 0,
            num_servers=config.servers if worker else config.num_servers,
            settings=config.job_settings(explicit_only=not worker),
            timeout=config.join_timeout if timeout is None else timeout,
            follows=recall(config) if worker else "",
        )

    def _joined(self) -> Session:
        session = self._session
        if session is None:
            raise NotInitializedError("call join() first")
        if session.error is not None:
            raise session.error
        if session.closed:
            raise ShutdownError("this member has left the job")
        return session

    def _post(self, error: BytePSLikeError, epoch: int, *, warning: bool) -> None:
        session = self._session
        if session is None or session.closed or session.error is not None:
            return
        said = wire.error_to_wire(error)
        request = pb.ReportRequest(member_id=session.id, error=said, warning=warning, epoch=epoch)
        self._loop.submit(session.post("Report", request))

    def _on_event(self, event: WatchEvent) -> None:
        self._events.tell(partial(_tell, event))


def _tell(event: WatchEvent, callback: Callable[[WatchEvent], None]) -> None:
    try:
        callback(event)
    except Exception:
        log.exception("an event callback failed on %s", event)


def _batches(specs: Sequence[TensorSpec]) -> Iterator[list[TensorSpec]]:
    """So many at a time that neither requests nor answers grow with a model; one at least."""
    batch: list[TensorSpec] = []
    taken = 0
    for spec in specs:
        if batch and (len(batch) == _BATCH or taken > _BATCH_BYTES):
            yield batch
            batch, taken = [], 0
        batch.append(spec)
        taken += 4 * (len(spec.name) + len(spec.codec) + len(spec.details))
    yield batch


def query_status(config: Config, timeout: float = 5.0) -> JobStatus:
    """Asks the scheduler how the job stands, without being a member.

    Raises RefusedError, DeadlineError, or PeerLostError if there is no scheduler.
    """
    return control_loop().run(_query(config, timeout))


def query_names(config: Config, tensors: Sequence[int], timeout: float = 5.0) -> dict[int, str]:
    """What users call the tensors of these ids, as far as the scheduler knows them. Raises as above."""
    return control_loop().run(_query_names(config, tensors, timeout))


def order_record(config: Config, order: RecordingOrder, timeout: float = 5.0) -> int:
    """Has all members of a running job record a timeline, without being one; how many were told. Raises as above."""
    return control_loop().run(_order_record(config, order, timeout))


def order_drain(config: Config, order: DrainOrder, timeout: float = 5.0) -> DrainProgress:
    """Asks a member of a running elastic job to leave it, or how that stands. Raises RefusedError if there is no such
    member, or the job can't do without, and as above."""
    return control_loop().run(_order_drain(config, order, timeout))


def catch_up(config: Config, address: str, timeout: float) -> str:
    """Who sends to `address` what the workers of the elastic job that runs have, as soon as they have begun; "": nobody
    does. Raises RefusedError where there are no such workers, DeadlineError if they come to no commit within `timeout`
    seconds, and as above."""
    return control_loop().run(_catch_up(config, address, timeout))


def decline(config: Config, error: Exception, timeout: float = 5.0) -> None:
    """This worker or server can't start: the workers, who would wait for it, are told why by the scheduler. Blocks up
    to `timeout` seconds; never raises what is wrong with the scheduler or the secret."""
    role = MemberRole.SERVER if config.role == "server" else MemberRole.WORKER
    member = own_member(config, role, host_id="", gbps=0.0)  # without what might be what it failed at
    request = pb.DeclineRequest(member=wire.member_to_wire(member), why=str(error)[: bounds.LONGEST_NAME])
    try:
        control_loop().run(_decline(config, request, timeout))
    except BytePSLikeError as unheard:
        log.debug("can't notify the other ranks: %s", unheard)


async def _decline(config: Config, request: pb.DeclineRequest, timeout: float) -> None:
    from byteps_like.control.calls.ruler import one_call

    await one_call(config, load(config), "Decline", request, timeout)


async def _order_record(config: Config, order: RecordingOrder, timeout: float) -> int:
    from byteps_like.control.calls.ruler import one_call

    request = pb.RecordRequest(order=order.to_text())
    reply: pb.RecordReply = await one_call(config, load(config), "Record", request, timeout)
    return int(reply.members)


async def _catch_up(config: Config, address: str, timeout: float) -> str:
    from byteps_like.control.calls.ruler import one_call

    request = pb.CatchUpRequest(address=address, timeout_s=timeout)
    reply: pb.CatchUpReply = await one_call(config, load(config), "CatchUp", request, timeout + CALL_SECONDS)
    return str(reply.feeders)


async def _order_drain(config: Config, order: DrainOrder, timeout: float) -> DrainProgress:
    from byteps_like.control.calls.ruler import one_call

    reply: pb.DrainMemberReply = await one_call(config, load(config), "DrainMember", wire.drain_to_wire(order), timeout)
    return wire.drained_from_wire(reply)


async def _query_names(config: Config, tensors: Sequence[int], timeout: float) -> dict[int, str]:
    from byteps_like.control.calls.ruler import one_call

    request = pb.NamesRequest(tensor_ids=tensors)
    reply: pb.NamesReply = await one_call(config, load(config), "Names", request, timeout)
    return dict(reply.names)


async def _query(config: Config, timeout: float) -> JobStatus:
    from byteps_like.control.calls.ruler import one_call

    reply: pb.StatusReply = await one_call(config, load(config), "Status", pb.StatusRequest(), timeout)
    return status_from_wire(reply)
