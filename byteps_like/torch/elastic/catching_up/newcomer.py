"""The newcomer's side: it follows the workers of a running job, step by step, until it is one of them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch

from byteps_like.collectives.api import Keeper
from byteps_like.config import Config
from byteps_like.control.calls.client import catch_up
from byteps_like.errors import (
    BytePSLikeError,
    CapacityError,
    CorruptError,
    DeadlineError,
    InvalidArgumentError,
    PeerLostError,
    RefusedError,
    ShutdownError,
    StalledError,
)
from byteps_like.torch.elastic.catching_up.followed import Followed, followed, optimizers, take
from byteps_like.torch.elastic.catching_up.messages import (
    BEHIND_BYTES,
    MOST_OPEN,
    PULSE_SECONDS,
    FeedingWorld,
    RecordHead,
    Word,
    address_of,
    behind_unpacked,
    chunks,
    listening,
    received,
    seal_of,
    sent,
    stand_in,
)
from byteps_like.torch.elastic.catching_up.steps import repeat
from byteps_like.torch.elastic.catching_up.stripes import Bytes, Stripe
from byteps_like.torch.elastic.state import State
from byteps_like.torch.job.apart import apart
from byteps_like.torch.job.trees import unflatten

logger = logging.getLogger(__name__)

_NEAR = 1
"""Steps behind the workers at which it asks for its place: as many are made until it has it."""
_PATIENCE = 3.0
"""Failure timeouts in which the last steps must come, once it is one of them."""


@dataclass
class _Opened:
    """A record that comes in."""

    tree: Any
    tensors: list[torch.Tensor]
    missing: set[int] = field(default_factory=set)
    """Stripes that aren't whole."""


class CatchingUp:
    """Threads: one receives from each worker that sends, one makes the steps.

    Where a sender is lost the next one has what it would have sent, and sends that from then on; it ends if that one is
    lost, too.
    """

    def __init__(self, communicator: Any, world: FeedingWorld, what: Followed, config: Config) -> None:
        """`communicator` listens at the last of the addresses in `world`, and is closed with it."""
        group = world.entered(communicator, world.feeders)
        self._seal = partial(seal_of, config, world.incarnation)
        self._communicator, self._group, self._what = communicator, group, what
        self._silence = config.failure_timeout
        self._patience, self._longest = _PATIENCE * config.failure_timeout, config.stall_timeout
        self._feeders = group.size - 1
        self._records: dict[int, _Opened] = {}
        self._behind = [0] * self._feeders
        self._senders = list(range(self._feeders))
        """Of each stripe."""
        self._told = [0.0] * self._feeders
        """When, of time.monotonic."""
        self._expected = [0] * self._feeders
        """The next record, of each stripe."""
        self._last: int | None = None
        """How many records there are at most, since a worker leaves."""
        self._worlds: dict[int, int] = {}
        """How many there were when a world began."""
        self.made = 0
        """How many this process has made its own: the state, then steps."""
        self.error: Exception | None = None
        self._changed = threading.Condition()
        self._receivers = [self._thread(partial(self._receive, rank)) for rank in range(self._feeders)]
        self._maker = self._thread(self._follow)

    def _thread(self, work: Callable[[], None]) -> threading.Thread:
        return threading.Thread(target=self._run, args=(work,), name="byteps_like-following", daemon=True)

    def begin(self) -> None:
        """Records come, and wait."""
        for thread in self._receivers:
            thread.start()

    def make(self) -> None:
        """From here on it changes what it follows with."""
        self._maker.start()

    def wait_until_state(self) -> bool:
        """Blocks until all of the state has come; False: it won't."""
        with self._changed:
            self._changed.wait_for(lambda: self.error is not None or self._is_whole(0))
            return self.error is None

    def wait_until_near(self) -> None:
        """Blocks until it has made all but the newest step, or can't any more."""
        with self._changed:
            self._changed.wait_for(lambda: self.error is not None or self._is_near())

    def wait_until_level(self, world: int) -> bool:
        """Blocks until it has made the last step before that world; False: it won't, in time, or lacks the state, which
        takes no less time as that world synchronizes."""
        with self._changed:
            if self.made == 0 and not self._is_whole(0):
                return False
            self._changed.wait_for(
                lambda: self.error is not None or self.made == self._worlds.get(world), self._patience
            )
            return self.made == self._worlds.get(world)

    def wait_until_weak(self) -> None:
        """Blocks until it can't go on (see `error`), or would not if one more sender was lost."""
        with self._changed:
            own = list(range(self._feeders))
            self._changed.wait_for(lambda: self.error is not None or self._senders != own or self._last is not None)

    def close(self) -> None:
        """Ends it, once the step that is being made is. Idempotent. Raises StalledError if that takes too long."""
        self._fail(ShutdownError("it follows no more", operation="catch up"))
        self._communicator.close()
        for thread in [*self._receivers, self._maker]:
            if thread.ident is None:  # it has not begun
                continue
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
        try:
            while self.error is None:
                head = RecordHead.unpacked(self._received(rank, RecordHead.BYTES))
                if head.number >= 0:
                    self._receive_record(rank, head)
                elif not self._goes_on(rank, head):
                    return
        except (PeerLostError, DeadlineError) as error:
            if not self._replace(rank):
                raise PeerLostError(str(error), operation="catch up") from None

    def _replace(self, rank: int) -> bool:
        """Has the next sender stand in for one that is lost; whether it can."""
        other = stand_in(rank, self._feeders)
        with self._changed:
            self._behind[rank] = 0
            if other == rank or [self._senders.count(one) for one in (rank, other)] != [1, 1]:
                return False
            self._senders[rank] = other
            self._changed.notify_all()
            self._tell(other, Word(self.made, rank, self._expected[rank]))
        logger.info("worker %d sends what worker %d can't send any more", other, rank)
        return True

    def _tell(self, rank: int, word: Word) -> None:
        """Under the lock, so that words come in their order. Who is lost meanwhile need not hear it."""
        data, self._told[rank] = word.packed(), time.monotonic()
        with suppress(PeerLostError):
            sent(self._group, data, rank).on_done(Keeper(data))

    def _received(self, rank: int, nbytes: int) -> Bytes:
        """The next so many bytes from it, which hears that this process lives."""
        data = received(self._group, nbytes, rank, self._silence)
        with self._changed:
            if time.monotonic() - self._told[rank] >= PULSE_SECONDS:
                self._tell(rank, Word(self.made))
        return data

    def _receive_record(self, rank: int, head: RecordHead) -> None:
        self._check(rank, head)
        text = self._seal(head.number).open(rank, self._received(rank, head.text_bytes).tobytes())
        stripe = Stripe(self._open(head.number, text).tensors, head.stripe, self._feeders)
        if stripe.nbytes != head.stripe_bytes:
            raise CorruptError(
                f"worker {rank} has sent {head}, and its stripe has {stripe.nbytes} bytes", operation="catch up"
            )
        for offset, nbytes in chunks(stripe.nbytes):
            stripe.write(offset, self._received(rank, nbytes))
        self._note_stripe(rank, head, behind_unpacked(self._received(rank, BEHIND_BYTES)))

    def _check(self, rank: int, head: RecordHead) -> None:
        """Raises CorruptError for a record that it can't send now."""
        may_send = 0 <= head.stripe < self._feeders and self._senders[head.stripe] == rank
        if not (may_send and head.number == self._expected[head.stripe] < self.made + MOST_OPEN):
            raise CorruptError(f"worker {rank} has sent {head}, which can't be", operation="catch up")

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
            self._records[head.number].missing.discard(head.stripe)
            self._expected[head.stripe] = head.number + 1
            self._behind[rank] = behind
            self._changed.notify_all()

    def _goes_on(self, rank: int, head: RecordHead) -> bool:
        """Whether anything follows from it. Raises what the worker has to say."""
        if head.number == RecordHead.GIVEN_UP:
            raise InvalidArgumentError("the steps of the workers can't be made again", operation="catch up")
        if head.number == RecordHead.TOO_SLOW:
            raise CapacityError("the workers make steps faster than it does", operation="catch up")
        with self._changed:
            if head.number == RecordHead.WORLD:
                self._worlds[head.stripe_bytes] = head.text_bytes
            elif head.number == RecordHead.END and not self._replace(rank):
                self._last = min(self._expected[rank], self._last or self._expected[rank])
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
                    for rank in set(self._senders):
                        self._tell(rank, Word(self.made))

    def _next(self) -> _Opened | None:
        """The next one, once it is whole; None: it follows no more."""

        with self._changed:
            self._changed.wait_for(
                lambda: self.error is not None or self._is_whole(self.made) or self.made == self._last
            )
            self._check_whole(self.made)
            return None if self.error is not None else self._records.get(self.made)

    def _is_whole(self, number: int) -> bool:
        record = self._records.get(number)
        return record is not None and not record.missing

    def _make(self, record: Any) -> None:
        if self.made == 0:
            take(self._what, record)
        else:
            repeat(optimizers(self._what)[record["optimizer"]], record)


def can_follow(state: State) -> bool:
    """Whether this process could make the workers' steps again."""
    return bool(followed(state)) and find_spec("byteps_like._core") is not None


def find(config: Config, state: State, timeout: float) -> CatchingUp | None:
    """Blocks until the workers have begun to send, at a commit within `timeout` seconds; None: they don't, and why is
    logged. Raises RefusedError where they feed nobody, or the world has ended meanwhile."""
    with ExitStack() as unless_it_follows:
        try:
            communicator = listening(config)
            unless_it_follows.callback(communicator.close)
            text = catch_up(config, FeedingWorld((address_of(communicator),)).text, timeout)
            if text:
                following = CatchingUp(communicator, FeedingWorld.of(text), followed(state), config)
                unless_it_follows.pop_all()
                return following
        except RefusedError:
            raise
        except BytePSLikeError as error:
            logger.info("this process can't follow the workers: %s", error)
    return None
