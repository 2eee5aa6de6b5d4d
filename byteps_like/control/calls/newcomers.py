"""Processes that would catch up with the workers of an elastic job before they join. Lives on its service's loop.

Spares, for whom the next world has no room yet, follow the workers until it has. Those who follow are no members. The
scheduler only lets each know the other: workers hear of the newcomer's address, and the newcomer of theirs, when they
have begun to send, at a commit. It keeps nothing: where another one takes its place, a newcomer asks that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from byteps_like.control import bounds
from byteps_like.control.members.membership import Membership
from byteps_like.control.members.past import JobState
from byteps_like.control.members.seats import Notice
from byteps_like.control.types import EventKind, WatchEvent
from byteps_like.control.v1 import scheduler_pb2 as pb
from byteps_like.errors import BytePSLikeError, DeadlineError, RefusedError
from byteps_like.worker.api import Newcomer

MOST_FED = 16
"""Newcomers that are fed in one world: what each gets of a step is as long as the gradients."""
_ENDED = "the world that was to be caught up with has ended"


class Newcomers:
    """Those who ask, in the world that runs."""

    def __init__(self, membership: Membership, send: Callable[[], None]) -> None:
        """`send`: has what is in the membership's outbox go out."""
        self._membership, self._send = membership, send
        self._waiting: dict[int, asyncio.Future[str]] = {}
        """For who feeds them, by number."""
        self._fed = 0
        self._world = 0

    @property
    def count(self) -> int:
        """How many wait, or have been told who feeds them, in this world."""
        return len(self._waiting) + self._fed

    async def catch_up(self, request: pb.CatchUpRequest) -> pb.CatchUpReply:
        """Answers when the workers have begun to send. Raises RefusedError where there is nobody to catch up with,
        DeadlineError."""
        address = bounds.short("address", request.address, bounds.LARGEST_JOIN)
        timeout = bounds.finite("timeout_s", request.timeout_s)
        self.follow_world()
        number = self._welcome(address)
        try:
            async with asyncio.timeout(timeout):
                return pb.CatchUpReply(feeders=await self._waiting[number])
        except BytePSLikeError:  # a DeadlineError is a TimeoutError, too
            raise
        except TimeoutError:
            text = f"no commit of the workers came within {timeout:.1f} s"
            raise DeadlineError(text, operation="catch up", elapsed=timeout) from None
        finally:
            self._waiting.pop(number, None)

    async def feed(self, request: pb.FeedRequest) -> pb.FeedReply:
        """A worker says who sends. Raises RefusedError for anybody else, and the failure of its epoch."""
        if not self._membership.running(request.member_id).is_worker:
            raise RefusedError("only workers feed newcomers", operation="feed")
        self.follow_world()
        feeders = bounds.short("feeders", request.feeders, bounds.LARGEST_JOIN)
        answer = self._waiting.get(request.newcomer)
        if answer is not None and not answer.done():
            answer.set_result(feeders)
            self._fed += bool(feeders)
        return pb.FeedReply()

    def follow_world(self) -> None:
        """Whoever waits for the workers of a world that runs no more hears so."""
        running = self._membership.number if self._membership.state is JobState.RUNNING else 0
        if running == self._world:
            return
        self._world, self._fed = running, 0
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(RefusedError(_ENDED, operation="catch up"))

    def _welcome(self, address: str) -> int:
        """Its number."""
        self._check_place()
        # As of members, whose count the next scheduler takes up: for the workers a number that they know is fed.
        self._membership.last_member += 1
        newcomer = Newcomer(self._membership.last_member, address)
        self._waiting[newcomer.number] = asyncio.get_running_loop().create_future()
        epoch = self._membership.epoch
        to = [seat.id for seat in epoch.present() if seat.is_worker] if epoch is not None else []
        text = f"newcomer {newcomer.number} would catch up with the workers"
        self._membership.outbox.append(Notice(tuple(to), WatchEvent(EventKind.NEWCOMER, text, newcomer=newcomer)))
        self._send()
        return newcomer.number

    def _check_place(self) -> None:
        """Raises RefusedError unless a world runs, whose workers send their state, and not to so many yet."""
        epoch, succession = self._membership.epoch, self._membership.forming.succession()
        if not self._world or epoch is None:
            raise RefusedError("no world runs that could be caught up with", operation="catch up")
        if succession is None or not all(seat.member.native for seat in epoch.workers()):
            raise RefusedError("the workers of this job feed no newcomers", operation="catch up")
        if self.count >= MOST_FED:
            raise RefusedError(f"the workers feed {self.count} newcomers already", operation="catch up")
