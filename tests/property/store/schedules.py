"""Random schedules of sources that push to a key and read it, in simulated time: with deaths, newcomers and repeats."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from byteps_like.store.ledger import Event, Late, Ledger, Version
from byteps_like.store.policies.policy import Contribution, Policy

STEPS = 8
"""Of each source."""
BLOCKS = 4
"""Of a step."""


@dataclass
class Source:
    """One that computes, pushes, and reads when it may."""

    number: int
    step_seconds: float
    base: int = 0
    left: int = STEPS
    sent: list[Contribution] = field(default_factory=list)
    waits: bool = False
    done: int = 0
    """Blocks of its step that it has sent before the last one."""


@dataclass(frozen=True)
class Read:
    """What a source has read."""

    clock: int
    """How many of its contributions are in it, or late."""
    sent: int
    """And how many it had made."""
    least: int
    """The same as `clock` of the slowest source."""
    version: int
    base: int
    """Of its last push; -1: none."""


@dataclass
class Run:
    """What has happened in one schedule."""

    versions: list[tuple[Version, frozenset[int]]] = field(default_factory=list)
    """With the sources that were live."""
    late: list[tuple[Contribution, int]] = field(default_factory=list)
    """With the version that was in force."""
    reads: list[Read] = field(default_factory=list)
    open: list[tuple[int, int]] = field(default_factory=list)
    """Whenever something has happened, how many last blocks are open, and how many sources live."""
    sent: list[Contribution] = field(default_factory=list)
    unfinished: list[int] = field(default_factory=list)
    """Live sources that wait for ever."""


class Schedule:
    """One of `policy`, by `seed`, of `ranks` sources; `keeper` makes the ledger. Now and then the policy changes to one
    of `others`. With `blocks` sources send the blocks that they have finished when they are cut off, and now and then
    else."""

    def __init__(
        self,
        policy: Policy,
        ranks: int,
        seed: int,
        keeper: Callable[[Policy, range], Ledger] = Ledger,
        others: Sequence[Policy] = (),
        blocks: bool = False,
    ) -> None:
        self._random = Random(seed)
        self._others, self._blocks = others, blocks
        self._numbers = itertools.count()
        self._ledger = keeper(policy, range(ranks))
        self._sources = {rank: self._source(rank) for rank in range(ranks)}
        self._due: list[tuple[float, int, str, int]] = []
        self._newcomer = ranks
        self.run = Run()

    def _source(self, number: int) -> Source:
        slow = 4.0 if self._random.random() < 0.2 else 1.0
        return Source(number, slow * self._random.uniform(0.5, 1.5))

    def _at(self, time: float, what: str, source: int = -1) -> None:
        heapq.heappush(self._due, (time, next(self._numbers), what, source))

    def play(self) -> Run:
        """Until nothing is left to happen."""
        for rank in self._sources:
            self._begin(rank, 0.0)
        for what in ("die", "come"):
            if self._random.random() < 0.4:
                self._at(self._random.uniform(0.0, 2.0 * STEPS), what)
        for _ in range(4 if self._others else 0):
            self._at(self._random.uniform(0.0, 2.0 * STEPS), "change")
        while self._due:
            now, _, what, rank = heapq.heappop(self._due)
            getattr(self, f"_{what}")(rank, now)
            self._look(now)
        self.run.unfinished = [one.number for one in self._sources.values() if one.left]
        return self.run

    def _begin(self, rank: int, now: float) -> None:
        source = self._sources[rank]
        slow = 4.0 if self._random.random() < 0.1 else 1.0
        seconds = slow * source.step_seconds * self._random.uniform(0.9, 1.1)
        for block in range(1, BLOCKS if self._blocks else 1):
            self._at(now + seconds * block / BLOCKS, "block", rank)
        self._at(now + seconds, "push", rank)

    def _block(self, rank: int, now: float) -> None:
        """One of a step is finished, some while before the last."""
        source = self._sources.get(rank)
        cut_off = rank in self._ledger.cut_off()
        if source is not None and (cut_off or self._random.random() < 0.05):
            self._send(source, now, weight=1.0, last=False)
            source.done += 1

    def _send(self, source: Source, now: float, weight: float, last: bool = True) -> None:
        push = Contribution(source.number, self._ledger.clock(source.number), source.base, weight, last=last)
        source.sent.append(push)
        self.run.sent.append(push)
        self._tell(self._ledger.push(push, now))
        if self._random.random() < 0.3:  # a link has broken, and nobody knows what has come
            self._tell(self._ledger.push(self._random.choice(source.sent), now))

    def _push(self, rank: int, now: float) -> None:
        source = self._sources.get(rank)
        if source is None:
            return  # it has died
        source.left -= 1
        self._send(source, now, float(BLOCKS - source.done))
        source.done = 0
        if not source.left:
            self._leave(rank, now)
        elif self._random.random() < 0.15:
            self._begin(rank, now)  # without reading
        else:
            source.waits = True

    def _leave(self, rank: int, now: float) -> None:
        del self._sources[rank]
        self._tell(self._ledger.lose(rank, now))

    def _die(self, _: int, now: float) -> None:
        if len(self._sources) > 1:
            self._leave(self._random.choice(list(self._sources)), now)

    def _come(self, _: int, now: float) -> None:
        if self._sources:
            rank, self._newcomer = self._newcomer, self._newcomer + 1
            self._ledger.join(rank)
            self._sources[rank] = self._source(rank)
            self._sources[rank].waits = True

    def _change(self, _: int, now: float) -> None:
        """As ranks do it: each rests until the last of them has come."""
        for rank in list(self._sources):
            self._tell(self._ledger.rest(rank, now))
        for rank in self._sources:
            self._ledger.wake(rank)
        self._tell(self._ledger.change(self._random.choice(self._others), now))

    def _wake(self, _: int, now: float) -> None:
        self._tell(self._ledger.pass_time(now))

    def _tell(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Version):
                self.run.versions.append((event, frozenset(self._sources)))
            else:
                assert isinstance(event, Late)
                self.run.late.append((event.push, self._ledger.version))

    def _look(self, now: float) -> None:
        for rank, source in self._sources.items():
            if source.waits and self._ledger.may_read(rank):
                source.waits, source.base = False, self._ledger.version
                last = source.sent[-1].base if source.sent else -1
                clock, sent = self._ledger.clocks[rank], self._ledger.clock(rank)
                self.run.reads.append(Read(clock, sent, self._ledger.least, source.base, last))
                self._begin(rank, now)
        self.run.open.append((len(self._ledger.open.finished), len(self._sources)))
        due = self._ledger.policy.ready_at(self._ledger)
        if due is not None:
            self._at(max(due, now), "wake")
