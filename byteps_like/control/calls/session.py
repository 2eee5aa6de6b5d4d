"""The asynchronous half of a ControlClient: one membership, from Join to Leave, on the control loop."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

from byteps_like.config import Config
from byteps_like.control.calls import wire
from byteps_like.control.calls.encryption import is_distrust
from byteps_like.control.calls.loop import control_loop
from byteps_like.control.calls.rpc import UnreachableError
from byteps_like.control.calls.ruler import SILENCE_SECONDS, Connect, Ruler, one_call
from byteps_like.control.members.seats import JoinClaim, Waiting, heartbeat_interval
from byteps_like.control.types import EventKind, Member, MemberRole, View, WatchEvent
from byteps_like.control.v1 import scheduler_pb2 as pb
from byteps_like.control.v1 import types_pb2 as types
from byteps_like.errors import BytePSLikeError, DeadlineError, PeerLostError, RefusedError, ShutdownError
from byteps_like.timeline.clock import clock
from byteps_like.timeline.orders import RecordingOrder, is_below
from byteps_like.timeline.recorder import recorder
from byteps_like.worker.api import Dismissal, Newcomer

log = logging.getLogger(__name__)

SCHEDULER_GRACE = 1.0
"""Seconds the scheduler may be out of reach before it counts as dead, at least: 1.5 times its grace for members."""
_RETRY = 0.05
_LOOK_SECONDS = 1.0
"""Between two looks at whether another scheduler rules."""
_TELL_SECONDS = 1.0
_PROBE_PAUSE = 0.5
"""Seconds between two looks at whether who listens there speaks TLS as this member does."""
_MENTION_AFTER = 5.0
"""Seconds without an answer after which a member that joins says so."""
_AFTER_STEPS = 0.5
"""Seconds for which a server goes on recording when the steps of rank 0 are."""
_BACKSTOP = 2.0
"""Seconds after its deadline within which the scheduler must have told who is missing."""


class LeftOutError(BytePSLikeError):
    """A world has begun without this worker, which has not come back to its job: there is no room for it yet."""


class Session:
    """One member's calls and streams. Everything but the plain attributes belongs to the control loop."""

    def __init__(
        self,
        config: Config,
        secret: bytes,
        claim: JoinClaim,
        on_event: Callable[[WatchEvent], None],
        stats: Callable[[], Mapping[str, float]],
        connect: Connect | None = None,
        waits: bool = True,
    ) -> None:
        """`connect`: as a Ruler's. `waits`: for room, when a world has begun without it."""
        self.id = claim.id
        self.member: Member | None = None
        """This member in the newest view."""
        self.view: View | None = None
        """The newest that has come."""
        self.incarnation = b""
        """Of the job, once Join has been answered."""
        self.number = 0
        """The member number that Join gave."""
        self.error: BytePSLikeError | None = None
        self.closed = False
        self.changes = 0
        """How often it was said that others wait to join, that some have died, or that this member is to leave."""
        self.dismissal: Dismissal | None = None
        """That this member was asked to leave."""
        self.newcomers: list[Newcomer] = []
        """Those who would catch up before they join."""
        self.waiting: tuple[Waiting, float] | None = None
        """What the rank waits for, and since when (of the control loop) it has said so."""
        self._config, self._secret, self._claim, self._on_event, self._stats = config, secret, claim, on_event, stats
        self.barriers: dict[str, int] = {}
        """From how many barriers of each name this member has been let go."""
        self._lost_since: float | None = None
        """When the watch stream broke; None: it is there."""
        self._may_be_replaced = False
        """By another scheduler, if this one ends."""
        self._grace = max(SCHEDULER_GRACE, 1.5 * config.peer_grace)
        self._waits = waits
        self._scheduler = f"scheduler {config.scheduler}"
        self._views: asyncio.Queue[View | BytePSLikeError] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._caller = Ruler(config, secret, clock.observe, connect)
        self._probe_at = 0.0
        self._seen = 0
        self._in_epoch = False
        self._lost_world = False
        """Whether a world with it has ended that it may not have heard of before."""

    # --- joining and leaving ---

    async def join(self) -> View:
        """Connects, claims the place and waits for the world. Raises LeftOutError where it does not wait for room."""
        deadline = _now() + self._claim.timeout
        self._check_open()
        self._tasks.append(asyncio.create_task(self._look_out()))
        await self._request_place(deadline)
        self._check_open()
        self._tasks.append(asyncio.create_task(self._watch()))
        self._tasks.append(asyncio.create_task(self._heartbeat()))
        try:
            async with asyncio.timeout(self._longest_wait(deadline)):
                return await self.next_view()
        except BytePSLikeError:  # a DeadlineError is a TimeoutError, too
            raise
        except TimeoutError:
            raise DeadlineError(f"the {self._scheduler} did not say how the join ended", operation="join") from None

    def _longest_wait(self, deadline: float) -> float | None:
        """For a world, in seconds. While an elastic job runs others wait for as long as the scheduler is there, which
        tells them when they wait in vain."""
        if self._config.elastic and self._claim.member.role is MemberRole.WORKER:
            return None
        return max(deadline - _now(), 0.0) + _BACKSTOP

    async def next_view(self) -> View:
        """The next epoch, as soon as it has formed. Raises what ended the wait."""
        found = await self._views.get()
        if isinstance(found, BytePSLikeError):
            self._views.put_nowait(found)
            raise found
        return found

    async def close(self, returning: bool, timeout: float, handed_over: bool = False) -> None:
        """Tells the scheduler and closes, whatever state the session is in."""
        if self.closed:
            return
        self.closed = True
        try:
            if self._caller.has_called and not self._is_cut_off():
                request = pb.LeaveRequest(member_id=self.id, returning=returning, handed_over=handed_over)
                await self._take_leave(request, timeout)
        except (UnreachableError, BytePSLikeError) as error:
            log.debug("leave: %s", error)
        finally:
            for task in self._tasks:
                task.cancel()
            self._views.put_nowait(ShutdownError("this member has left the job"))
            await self._caller.close()

    def abandon(self) -> None:
        """Nothing is told, and nothing heard any more: what a process that dies does. Idempotent."""
        self.closed = True
        for task in self._tasks:
            task.cancel()

    @property
    def known_as(self) -> str:
        """Under which id this process was in the newest world that it has been in; empty: in none. A world may end
        while its servers take it up, before its workers hear of it."""
        return self.id if self.view is not None or self._lost_world else self._claim.follows

    def _is_cut_off(self) -> bool:
        """Whether the scheduler can't be told anything."""
        error = self.error
        return isinstance(error, RefusedError) or (isinstance(error, PeerLostError) and error.peer == "scheduler")

    async def _take_leave(self, request: pb.LeaveRequest, timeout: float) -> None:
        """A worker, or a server that has handed over what it kept, is in no hurry where another scheduler may come: who
        isn't heard has died, for the others."""
        needs = self._claim.member.role is MemberRole.WORKER or request.handed_over
        waits = self._may_be_replaced and self.error is None and needs
        deadline = _now() + self._grace
        while True:
            try:
                await self._caller.call("Leave", request, timeout)
                return
            except UnreachableError:
                if not waits or _now() > deadline:
                    raise
                await asyncio.sleep(_RETRY)

    # --- calls ---

    async def call(self, name: str, request: Message, timeout: float, renew: Callable[[], None] = lambda: None) -> Any:
        """The answer; calls that a broken connection cut off are made again until the scheduler counts as dead. `renew`
        is called before that: it may change the request, or raise."""
        lost_since: float | None = None
        while True:
            if self.error is not None:
                raise self.error
            self._check_open()
            try:
                return await self._caller.call(name, request, timeout)
            except UnreachableError as error:
                renew()
                lost_since = lost_since or _now()
                if _now() - lost_since > 2 * self._grace:
                    raise self._lost(error) from None
                await asyncio.sleep(_RETRY)

    async def post(self, name: str, request: Message) -> None:
        """A call whose answer nobody waits for."""
        try:
            await self.call(name, request, 10.0)
        except BytePSLikeError as error:
            log.debug("%s: %s", name, error)

    def _check_open(self) -> None:
        if self.closed:
            raise ShutdownError("this member has left the job")

    async def _request_place(self, deadline: float) -> None:
        mention = asyncio.get_running_loop().call_later(_MENTION_AFTER, self._mention_silence, deadline)
        try:
            await self._ask_for_place(deadline)
        finally:
            mention.cancel()

    def _mention_silence(self, deadline: float) -> None:
        log.warning(
            "the %s has not answered for %.0f s: has it been started? Trying for %.0f s more",
            self._scheduler,
            _MENTION_AFTER,
            max(deadline - _now(), 0.0),
        )

    async def _ask_for_place(self, deadline: float) -> None:
        request = wire.claim_to_wire(self._claim)
        while True:
            remaining = deadline - _now()
            try:
                reply: pb.JoinReply = await self._caller.call("Join", request, max(remaining, 0.1))
                self.incarnation, self.number = reply.incarnation, reply.member_number
                self._grace = max(self._grace, reply.absence_s)
                self._may_be_replaced = reply.absence_s > 0
                return
            except UnreachableError as error:
                self._check_open()
                await self._check_encryption(error)
                if remaining <= 0:
                    waited = f"within {self._claim.timeout:.1f} s"
                    raise DeadlineError(
                        f"can't reach the {self._scheduler} {waited}: {error}", operation="join"
                    ) from None
                await asyncio.sleep(_RETRY)

    async def _check_encryption(self, error: UnreachableError) -> None:
        """Raises RefusedError if it is in vain to try again."""
        if _now() < self._probe_at and not is_distrust(error.details):
            return
        self._probe_at = _now() + _PROBE_PAUSE
        if not (why := await self._caller.why_apart(error)):
            return
        if self._config.tls == "off":
            await self._decline(why)
        raise RefusedError(f"the {self._scheduler} can't be joined: {why}", operation="join")

    async def _decline(self, why: str) -> None:
        """The others, who would wait for this member, hear why it can't join; it has the secret to tell them."""
        encrypting = replace(self._config, tls="on")
        member = wire.member_to_wire(self._claim.member)
        try:
            await one_call(
                encrypting, self._secret, "Decline", pb.DeclineRequest(member=member, why=why), _TELL_SECONDS
            )
        except BytePSLikeError as error:
            log.debug("can't notify the other members: %s", error)

    # --- background ---

    async def _watch(self) -> None:
        while not self.closed:
            try:
                await self._read_stream()
                return
            except UnreachableError as error:
                self._lost_since = self._lost_since or _now()
                if _now() - self._lost_since > self._grace:
                    self._fail(self._lost(error))
                    return
                await asyncio.sleep(_RETRY)
            except BytePSLikeError as error:
                self._fail(PeerLostError(f"{self._scheduler} no longer knows this member: {error}", peer="scheduler"))
                return

    async def _read_stream(self) -> None:
        request = pb.WatchRequest(member_id=self.id, seen=self._seen, barriers=self.barriers)
        async for message in self._caller.stream("Watch", request, self._on_open):
            self._seen += 1
            if message.HasField("world"):
                self._take_view(message.world)
            else:
                self._take_event(wire.event_from_wire(message.event))

    def _on_open(self) -> None:
        self._lost_since = None

    def _take_view(self, message: types.World) -> None:
        view = wire.view_from_wire(message)
        if self.view is not None and view.number == self.view.number:
            return  # another scheduler tells it again
        self.member = (*view.workers, *view.servers)[list(message.member_ids).index(self.id)]
        self.view, self._in_epoch = view, True
        if self.member.role is MemberRole.WORKER and self.member.rank == 0:
            recorder.announce_to(self._announce)
        self._views.put_nowait(view)

    def _take_event(self, event: WatchEvent) -> None:
        if event.kind is EventKind.FAILED:
            if event.epoch and self._claim.member.role is MemberRole.SERVER:
                if not self._in_epoch or self.view is None or event.epoch != self.view.number:
                    return  # another scheduler tells it again
                self._in_epoch = False  # a server outlives its epoch: the next view comes on the same stream
            else:
                self._lost_world = event.epoch > 0
                self._fail(event.error or BytePSLikeError(event.text), event)
                return
        elif event.kind is EventKind.ENDED:
            if self._claim.member.role is MemberRole.SERVER:
                self.dismissal = None  # nobody is to come in its place any more
            self._views.put_nowait(ShutdownError(event.text))
        elif event.kind is EventKind.LEFT_OUT:
            if not self._waits:
                self._views.put_nowait(LeftOutError(event.text, operation="join"))
            return
        elif event.kind is EventKind.JOINERS or (event.kind is EventKind.LOST and self._config.elastic):
            self.changes += 1
        elif event.kind is EventKind.DRAIN:
            self._take_dismissal(event)
        elif event.newcomer is not None:
            self.newcomers.append(event.newcomer)
        elif event.kind is EventKind.RECORD:
            self._record(event.text)
            return
        self._on_event(event)

    def _take_dismissal(self, event: WatchEvent) -> None:
        """A server leaves at once if others have what it had. A worker leaves when all of its world know."""
        self.dismissal = Dismissal(event.text, event.replace)
        if self._claim.member.role is not MemberRole.SERVER:
            self.changes += 1
        elif not event.hand_over:
            self._views.put_nowait(ShutdownError(event.text))

    def _record(self, order: str) -> None:
        """Records a timeline. Who counts steps ends it alone; a server a little later, with the last results."""
        if order:
            self._obey(order)
        elif self._claim.member.role is MemberRole.SERVER:
            asyncio.get_running_loop().call_later(_AFTER_STEPS, recorder.stop)

    def _obey(self, text: str) -> None:
        """Records where this process itself lets others have it write."""
        try:
            order = RecordingOrder.from_text(text)
            folders = (str(Path.cwd()), tempfile.gettempdir(), self._config.trace_root, self._config.trace)
            if is_below(order.path, folders):
                recorder.take(order)
            else:
                log.warning(
                    "no timeline is recorded here: %s is below neither the working directory, the temporary one nor"
                    " BYTEPS_LIKE_TRACE_ROOT", order.path,
                )  # fmt: skip
        except (BytePSLikeError, OSError, ValueError) as error:
            log.warning("no timeline is recorded here: %s", error)

    def _announce(self, order: RecordingOrder | None) -> None:
        """The recorder of rank 0 has begun, or all steps are recorded: all members are told. Any thread."""
        text = order.to_text() if order is not None else ""
        if not self.closed:
            control_loop().submit(self.post("Record", pb.RecordRequest(order=text)))

    def _fail(self, error: BytePSLikeError, event: WatchEvent | None = None) -> None:
        """The job is over for this member: everything that waits and everything that comes raises `error`."""
        if self.error is not None or self.closed:
            return
        self.error = error
        self._views.put_nowait(error)
        self._on_event(event or WatchEvent(EventKind.FAILED, str(error), error))

    def _lost(self, error: UnreachableError) -> PeerLostError:
        text = f"the {self._scheduler} died or can't be reached any more: {error}"
        return PeerLostError(text, peer="scheduler", operation="watch")

    async def _look_out(self) -> None:
        """For a newer scheduler, when this one is silent. It doesn't wait for long, and heartbeats of many members are
        rarer: other addresses are looked at in between, but not the same one, which would cost its scheduler more."""
        while not self.closed and self.error is None:
            await asyncio.sleep(_LOOK_SECONDS)
            await self._caller.look_around(SILENCE_SECONDS + (0.0 if self._caller.has_choice else self._pause()))

    def _pause(self) -> float:
        """Seconds between heartbeats."""
        view = self.view
        members = 0 if view is None else view.size + len(view.servers)
        return heartbeat_interval(self._config.heartbeat_interval, members)

    async def _heartbeat(self) -> None:
        while not self.closed and self.error is None:
            await asyncio.sleep(self._pause())
            request = pb.HeartbeatRequest(member_id=self.id, stats=self._counters())
            if self.waiting is not None:
                what, said = self.waiting
                request.waiting.CopyFrom(wire.waiting_to_wire(what))
                request.waiting.since_s += _now() - said
            await self.post("Heartbeat", request)

    def _counters(self) -> Mapping[str, float]:
        try:
            return self._stats()
        except BytePSLikeError as error:  # what counts is being closed
            log.debug("counters: %s", error)
            return {}


def _now() -> float:
    """Of the control loop, whose clock is time.monotonic, unless it is a simulated one."""
    return asyncio.get_running_loop().time()
