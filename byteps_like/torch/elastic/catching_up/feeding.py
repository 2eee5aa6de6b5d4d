"""The workers' side: at which commit they begin to feed a newcomer, and until when."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import Any

from torch.utils.hooks import RemovableHandle

from byteps_like.errors import BytePSLikeError, CorruptError, InvalidArgumentError
from byteps_like.torch.elastic.catching_up.feed import Feed, HeldRecord
from byteps_like.torch.elastic.catching_up.followed import followed, is_reducing, kept, optimizers
from byteps_like.torch.elastic.catching_up.messages import (
    MOST_FEEDERS,
    FeedingWorld,
    address_of,
    addresses,
    listening,
    seal_of,
)
from byteps_like.torch.elastic.catching_up.steps import Record, before_steps
from byteps_like.torch.elastic.state import State, duties_of
from byteps_like.torch.job import runtime as _runtime
from byteps_like.torch.ops.objects import allgather_object
from byteps_like.worker.api import MeetsNewcomers, Newcomer

logger = logging.getLogger(__name__)

Held = Callable[[int, int], HeldRecord]
"""One record, by which of the senders this rank is, and how many there are: feeds with the same place share it."""

_PATIENCE = 1.0
"""Failure timeouts for which a rank that leaves the job waits until the little that a newcomer lacks is sent."""


@contextmanager
def feeding(state: State) -> Iterator[None]:
    """While the block trains `state`, newcomers catch up with it."""
    own = Feeding(state)
    duties_of(state).feeding = own
    try:
        yield
    finally:
        duties_of(state).feeding = None
        own.close()


class Feeding:
    """Of one state, in one world after the other."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._feeds: list[Feed] = []
        self._newest = 0
        self._met: set[int] = set()
        """Newcomers that all ranks have dealt with, by number."""
        self._hooks: list[RemovableHandle] = []

    @property
    def heard(self) -> int:
        """See state.Feeds."""
        newcomers = self._newcomers()
        return newcomers[-1].number if newcomers else 0

    def begin(self, newest: int) -> None:
        """See state.Feeds. Newcomers are fed by the first ranks, from what this commit has kept on. Where a scheduler
        has died some ranks may not have heard of all."""
        self._forget_failed()
        if newest <= self._newest:
            return
        self._newest = newest
        known = set.intersection(*allgather_object({one.number for one in self._newcomers()})) - self._met
        self._met |= known
        state = cache(lambda *place: HeldRecord.of(kept(followed(self._state)), *place))
        for newcomer in self._newcomers():
            if newcomer.number in known:
                self._welcome(newcomer, state)

    def end(self, in_order: bool, leaves: bool) -> None:
        """See state.Feeds. After a commit feeds go on: the steps of the next world come behind those of this one."""
        if leaves and in_order:
            deadline = time.monotonic() + _PATIENCE * _runtime.settings().failure_timeout
            for feed in self._feeds:
                feed.leave(deadline)
        elif not in_order:
            self.close()
        self._newest, self._met = 0, set()

    def enter(self) -> None:
        """See state.Feeds."""
        for feed in self._feeds:
            feed.begin_world(_runtime.installed().steps.world)

    def close(self) -> None:
        """Newcomers get no more. Idempotent."""
        for feed in self._feeds:
            feed.close()
        self._forget_failed()

    def _forget_failed(self) -> None:
        """Feeds that have ended, and where none is left, what listens to steps: between two of these."""
        self._feeds = [feed for feed in self._feeds if feed.error is None]
        if not self._feeds:
            for hook in self._hooks:
                hook.remove()
            self._hooks = []

    def _newcomers(self) -> tuple[Newcomer, ...]:
        worker = _runtime.installed().worker
        return tuple(worker.newcomers()) if isinstance(worker, MeetsNewcomers) else ()

    def _welcome(self, newcomer: Newcomer, state: Held) -> None:
        """All ranks are here, at the same commit, which has kept `state`."""
        rank, name = _runtime.rank(), f"newcomer {newcomer.number}"
        feeds = rank < MOST_FEEDERS and bool(followed(self._state))
        communicator = self._listen(name) if feeds else None
        with ExitStack() as unless_it_feeds:
            if communicator is not None:
                unless_it_feeds.callback(communicator.close)
            peers = allgather_object(None if communicator is None else address_of(communicator))[:MOST_FEEDERS]
            world = None if None in peers else _world_with(peers, newcomer)
            if communicator is not None and world is not None:
                self._feed(name, world, communicator).begin(state(rank, world.feeders))
                unless_it_feeds.pop_all()
        if world is None:
            logger.info("rank %d: the state of this job can't be sent to %s before it joins", rank, name)
        self._tell(newcomer, "" if world is None else world.text)

    def _listen(self, name: str) -> Any:
        try:
            return listening(_runtime.settings())
        except BytePSLikeError as error:
            logger.warning("rank %d can't send %s its state: %s", _runtime.rank(), name, error)
            return None

    def _feed(self, name: str, world: FeedingWorld, communicator: Any) -> Feed:
        what = followed(self._state)
        if not self._hooks:
            self._hooks = [before_steps(one, partial(self._put, name)) for name, one in optimizers(what).items()]
        group = world.entered(communicator, _runtime.rank())
        seal = partial(seal_of, _runtime.settings(), world.incarnation)
        feed = Feed(communicator, group, partial(is_reducing, what), name, seal)
        self._feeds.append(feed)
        return feed

    def _put(self, name: str, step: Record | None) -> None:
        held = cache(lambda *place: HeldRecord.of({"optimizer": name, **(step or {})}, *place))
        for feed in [feed for feed in self._feeds if feed.error is None]:
            if step is None:
                feed.give_up(InvalidArgumentError(f"a step of {name!r} can't be repeated", operation="catch up"))
            else:
                feed.put(held(*feed.place))

    def _tell(self, newcomer: Newcomer, feeders: str) -> None:
        worker = _runtime.installed().worker
        if _runtime.rank() == 0 and isinstance(worker, MeetsNewcomers):
            worker.feed(newcomer.number, feeders)


def _world_with(peers: Sequence[dict[str, Any]], newcomer: Newcomer) -> FeedingWorld | None:
    """None where its address makes no sense: all ranks find the same."""
    try:
        world = FeedingWorld((*peers, *addresses(newcomer.address)))
        world.ranks()
    except CorruptError as error:
        logger.warning("newcomer %d: %s", newcomer.number, error)
        return None
    return world
