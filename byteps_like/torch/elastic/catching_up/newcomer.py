"""The newcomer's side: it follows the workers of a running job, step by step, until it is one of them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch

from byteps_like.config import Config
from byteps_like.control.calls.client import catch_up
from byteps_like.errors import (
    BytePSLikeError,
    CapacityError,
    CorruptError,
    PeerLostError,
    RefusedError,
    ShutdownError,
    StalledError,
)
from byteps_like.torch.elastic.catching_up.followed import Followed, followed, optimizers, take
from byteps_like.torch.elastic.catching_up.messages import (
    BEHIND_BYTES,
    FeedingWorld,
    RecordHead,
    address_of,
    behind_unpacked,
    chunks,
    listening,
    received,
    seal_of,
)
from byteps_like.torch.elastic.catching_up.steps import repeat
from byteps_like.torch.elastic.catching_up.stripes import Stripe
from byteps_like.torch.elastic.state import State
from byteps_like.torch.job.apart import apart
from byteps_like.torch.job.trees import unflatten

logger = logging.getLogger(__name__)

_NEAR = 1
"""Steps behind the workers at which it asks for its place: as many are made until it has it."""
_MOST_OPEN = 8
"""Records that come in before the first of them is made: what workers can't send fills their queues, which have a
limit."""
_PATIENCE = 3.0
"""Failure timeouts in which the last steps must come, once it is one of them."""


@dataclass
class _Opened:
    """A record that comes in."""

    tree: Any
    tensors: list[torch.Tensor]
    missing: set[int] = field(default_factory=set)
    """Feeders whose stripe isn't whole."""


class CatchingUp:
    """Threads: one receives from each worker that sends, one makes the steps."""

    def __init__(self, communicator: Any, world: FeedingWorld, what: Followed, config: Config) -> None:
        """`communicator` listens at the last of the addresses in `world`, and is closed with it."""
        group = world.entered(communicator, world.feeders)
        self._seal = partial(seal_of, config, world.incarnation)
        self._communicator, self._group, self._what = communicator, group, what
        self._patience, self._longest = _PATIENCE * config.failure_timeout, config.stall_timeout
        self._feeders = group.size - 1
        self._records: dict[int, _Opened] = {}
        self._behind = [0] * self._feeders
        self._last: int | None = None
        """How many records there are at most, since a worker leaves."""
        self._worlds: dict[int, int] = {}
        """How many there were when a world began."""
        self.made = 0
        """How many this process has made its own: the state, then steps."""
        self.error: Exception | None = None
        self._changed = threading.Condition()
        works = [self._follow, *(partial(self._receive, rank) for rank in range(self._feeders))]
        self._threads = [
            threading.Thread(target=self._run, args=(work,), name="byteps_like-following", daemon=True)
            for work in works
        ]
        for thread in self._threads:
            thread.start()

    def wait_until_near(self) -> None:
        """Blocks until it has made all but the newest step, or can't any more."""
        with self._changed:
            self._changed.wait_for(lambda: self.error is not None or self._is_near())

    def wait_until_level(self, world: int) -> bool:
        """Blocks until it has made the last step before that world; False: it won't, in time."""
        with self._changed:
            self._changed.wait_for(
                lambda: self.error is not None or self.made == self._worlds.get(world), self._patience
            )
            return self.made == self._worlds.get(world)

    def close(self) -> None:
        """Ends it, once the step that is being made is. Idempotent. Raises StalledError if that takes too long."""
        self._fail(ShutdownError("it follows no more", operation="catch up"))
        self._communicator.close()
        for thread in self._threads:
            thread.join(self._longest)
            if thread.is_alive():
                text = f"a step that was to be made again has not ended after {self._longest:g} s"
                raise StalledError(text, operation="catch up", elapsed=self._longest)

    def _is_near(self) -> bool:
        return self.made > 0 and len(self._records) + max(self._behind) <= _NEAR

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - of models, of optimizers: it joins without
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self.error = self.error or error
            self._changed.notify_all()
        self._communicator.close()  # at once: else workers would wait for it as their world ends

    def _receive(self, rank: int) -> None:
        while self.error is None:
            head = RecordHead.unpacked(received(self._group, RecordHead.BYTES, rank))
            if head.number >= 0:
                self._receive_record(rank, head)
            elif not self._goes_on(head):
                return

    def _receive_record(self, rank: int, head: RecordHead) -> None:
        self._wait_for_room(head.number)
        text = self._seal(head.number).open(rank, received(self._group, head.text_bytes, rank).tobytes())
        stripe = Stripe(self._open(head.number, text).tensors, rank, self._feeders)
        if stripe.nbytes != head.stripe_bytes:
            raise CorruptError(
                f"worker {rank} has sent {head}, and its stripe has {stripe.nbytes} bytes", operation="catch up"
            )
        for offset, nbytes in chunks(stripe.nbytes):
            stripe.write(offset, received(self._group, nbytes, rank))
        self._note_stripe(rank, head, behind_unpacked(received(self._group, BEHIND_BYTES, rank)))

    def _wait_for_room(self, number: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: number - self.made < _MOST_OPEN or self.error is not None)

    def _open(self, number: int, text: bytes) -> _Opened:
        """The record, which the first of its stripes makes."""
        with self._changed:
            self._check_whole(number)
            if number not in self._records:
                tree, tensors = unflatten(text)
                self._records[number] = _Opened(tree, tensors, set(range(self._feeders)))
            return self._records[number]

    def _note_stripe(self, rank: int, head: RecordHead, behind: int) -> None:
        with self._changed:
            self._records[head.number].missing.discard(rank)
            self._behind[rank] = behind
            self._changed.notify_all()

    def _goes_on(self, head: RecordHead) -> bool:
        """Whether anything follows. Raises what the worker has to say."""
        if head.number == RecordHead.GIVEN_UP:
            raise CapacityError("the workers have given it up", operation="catch up")
        with self._changed:
            if head.number == RecordHead.WORLD:
                self._worlds[head.stripe_bytes] = head.text_bytes
            elif head.number == RecordHead.END:
                self._last = head.text_bytes
                self._check_whole(max(self._records, default=0))
            self._changed.notify_all()
        return head.number != RecordHead.END

    def _check_whole(self, number: int) -> None:
        """Raises PeerLostError if that record will never be, since a worker has left."""
        if self._last is not None and number >= self._last:
            raise PeerLostError("a worker that sends its state has left", operation="catch up")

    def _follow(self) -> None:
        with apart():
            while (record := self._next()) is not None:
                self._make(record.tree)
                with self._changed:
                    del self._records[self.made]
                    self.made += 1
                    self._changed.notify_all()

    def _next(self) -> _Opened | None:
        """The next one, once it is whole; None: it follows no more."""

        def found() -> bool:
            record = self._records.get(self.made)
            whole = record is not None and not record.missing
            return whole or self.error is not None

        with self._changed:
            self._changed.wait_for(found)
            return None if self.error is not None else self._records.get(self.made)

    def _make(self, record: Any) -> None:
        if self.made == 0:
            take(self._what, record)
        else:
            repeat(optimizers(self._what)[record["optimizer"]], record)


def follow(config: Config, state: State) -> CatchingUp | None:
    """Blocks until the workers have begun to send, at a commit within `failure_timeout`; None: they don't, and why is
    logged. Raises RefusedError where there is no room, or the world has ended meanwhile."""
    what = followed(state)
    if not what or find_spec("byteps_like._core") is None:
        logger.info("this state can't be sent before this process joins: the others wait for that")
        return None
    communicator = listening(config)
    try:
        text = catch_up(config, FeedingWorld((address_of(communicator),)).text, config.failure_timeout)
        if text:
            world = FeedingWorld.of(text)
            return CatchingUp(communicator, world, what, config)
    except RefusedError:
        communicator.close()
        raise
    except BytePSLikeError as error:
        logger.info("this process joins at once: %s", error)
    communicator.close()
    return None
