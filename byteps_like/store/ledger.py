"""What a server knows of one store key beside its bytes: the version, what it has of each source, what waits.

Each contribution is settled exactly once: it is part of one version, or late. A repeated one, after a broken link, is
recognized by its clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from byteps_like.errors import CorruptError
from byteps_like.store.gradient_estimate import GradientEstimate
from byteps_like.store.policies.policy import (
    NOW,
    ROUNDS,
    Contribution,
    Open,
    Policy,
    PushPace,
    PushVerdict,
    StoreRound,
)

_RECENT = 0.25
"""The part of the newest interval in the average of all."""


@dataclass(frozen=True)
class Version:
    """A version that was just made."""

    number: int
    """From 1."""
    pushes: tuple[Contribution, ...]
    """What it was made of, in the order in which they came."""

    def age(self, push: Contribution) -> int:
        """How many versions were made since the one it was computed on, before this one."""
        return self.number - 1 - push.base


@dataclass(frozen=True)
class Late:
    """A push that is not applied."""

    push: Contribution


Event = Version | Late


class Ledger:
    """One key's, under `policy`; `sources` are live. Times are seconds of any one clock. Not thread-safe.

    Each call returns what it has brought about, in order.
    """

    def __init__(self, policy: Policy, sources: Iterable[int], now: float = 0.0) -> None:
        self.policy = policy
        self.version = 0
        self.clocks = dict.fromkeys(sources, 0)
        self.open = Open(now)
        self.paces: dict[int, PushPace] = {}
        self.gap: float | None = None
        self.bases: dict[int, int] = {}
        self.leads: dict[int, float] = {}
        self.unfinished: set[int] = set()
        self._observed: GradientEstimate | None = None
        self._look_back()
        self._held: list[Contribution] = []
        self._newest: float | None = None
        self._left: dict[int, int] = {}
        self.resting: set[int] = set()
        """Those of who has left that come back, and go on where they were."""

    @property
    def least(self) -> int:
        """The fewest contributions that are behind a live source."""
        return min(self.clocks.values(), default=0)

    def knows(self, source: int) -> bool:
        """Whether it is a live source, or was."""
        return source in self.clocks or source in self._left

    def clock(self, source: int) -> int:
        """That of its next push; what is before it is here."""
        behind = self.clocks[source] if source in self.clocks else self._left[source]
        return behind + sum(one.source == source for one in (*self.open.pushes, *self._held))

    def cut_off(self) -> list[int]:
        """Live sources of which no block is here, nor in a version before, while the open one is about to be made
        without them: they should send those that they have finished."""
        due = self.policy.ready_at(self)
        if due is None or due == NOW:
            return []
        return [one for one in self.clocks if one not in self.open.sources | self.unfinished]

    def push(self, push: Contribution, now: float) -> list[Event]:
        """A contribution has come, whole. Nothing becomes of one that has come before. Raises CorruptError if one
        before it is missing, or it was computed on a version that there is not yet."""
        expected = self.clock(push.source)
        if push.clock < expected:
            return []
        if push.clock > expected or push.base > self.version:
            raise CorruptError(
                f"rank {push.source} has pushed its contribution {push.clock}, computed on version {push.base}, after"
                f" {expected} of its own, and {self.version} versions"
            )
        self._note(push, now)
        return [*self._offer(push, now), *self.pass_time(now)]

    def pass_time(self, now: float) -> list[Event]:
        """It is `now`: what is ready is made."""
        events: list[Event] = []
        while (due := self.policy.ready_at(self)) is not None and due <= now:
            events += self._make(now)
        return events

    def change(self, policy: Policy, now: float) -> list[Event]:
        """From now on `policy` decides, also on what is here."""
        self.policy = policy
        self._look_back()
        for source in sorted(self.clocks.keys() & self.paces.keys()):
            self.leads[source] = policy.lead(self, source)
        return self.pass_time(now)

    def observe(self, estimate: GradientEstimate) -> None:
        """What those tell of the gradient that the newest version is made of. Changes nothing before the next one."""
        self._observed = estimate

    def may_read(self, reader: int) -> bool:
        """Whether a live source may read the version in force."""
        return self.policy.may_read(self, reader)

    def lose(self, source: int, now: float) -> list[Event]:
        """It has left. What it has pushed counts; nobody waits for it."""
        if source in self.resting:
            self.resting.remove(source)
            return []
        self._left[source] = self.clocks.pop(source)
        return self.pass_time(now)

    def rest(self, source: int, now: float) -> list[Event]:
        """It pushes nothing until it wakes: nobody waits for it meanwhile."""
        events = self.lose(source, now)
        self.resting.add(source)
        return events

    def wake(self, source: int) -> None:
        """It goes on."""
        self.resting.remove(source)
        self.clocks[source] = self._left.pop(source)

    def join(self, source: int) -> int:
        """It has come: the clock of its first push."""
        self.unfinished.discard(source)
        self.clocks[source] = max(self.least, self._left.pop(source, 0))
        return self.clock(source)

    def amend(self) -> None:
        """A version is made of no contribution. Who waits for its own to be part of one goes on waiting."""
        self.version += 1
        for push in (*self.open.pushes, *self._held):
            self.bases[push.source] = self.version

    def drop(self) -> list[Event]:
        """What waits is late."""
        waiting = [*self.open.pushes, *self._held]
        self.open, self._held = Open(self.open.since), []
        for push in waiting:
            self._settle(push)
        return [Late(push) for push in waiting]

    def restore(self, version: int, now: float) -> None:
        """The value was made that of `version`: when and on what others were computed is forgotten. Nothing waits;
        clocks go on."""
        self.open.since = now
        self.version = version
        self.paces.clear()
        self.bases.clear()
        self._look_back()

    def _look_back(self) -> None:
        """From here on."""
        self.rounds = deque([StoreRound(self.open.since)], ROUNDS + 1)
        self.estimates: deque[GradientEstimate] = deque(maxlen=ROUNDS)
        self._observed = None

    def _note(self, push: Contribution, now: float) -> None:
        self.bases[push.source] = push.base
        pace = self.paces.get(push.source)
        self.paces[push.source] = PushPace(now, None if pace is None else now - pace.last)
        if push.last:
            self.unfinished.discard(push.source)
            self._note_last(push, now)
        else:
            self.unfinished.add(push.source)

    def _note_last(self, push: Contribution, now: float) -> None:
        if self.policy.observes and self.version - push.base < len(self.rounds):
            known = self.rounds[push.base - self.version - 1]
            known.times.append(now - known.began)
        if self._newest is not None:
            gap = now - self._newest
            self.gap = gap if self.gap is None else self.gap + _RECENT * (gap - self.gap)
        self._newest = now

    def _offer(self, push: Contribution, now: float) -> list[Event]:
        verdict = PushVerdict.HOLD if self._waits(push.source) else self.policy.on_push(self, push)
        if verdict is PushVerdict.LATE:
            self._settle(push)
            return [Late(push)]
        if verdict is PushVerdict.HOLD:
            self._held.append(push)
        else:
            self.open.pushes.append(push)
            if push.last:
                self.open.finished[push.source] = now
        return []

    def _waits(self, source: int) -> bool:
        """Whether contributions of it wait for the next version: of each source one goes after the other, and a version
        has the blocks of one."""
        return source in self.open.finished or any(one.source == source for one in self._held)

    def _make(self, now: float) -> list[Event]:
        pushes, held = tuple(self.open.pushes), self._held
        self.version += 1
        self.open, self._held = Open(now), []
        if self.policy.observes:
            self.rounds.append(StoreRound(now))
        if self._observed is not None:
            self.estimates.append(self._observed)
            self._observed = None
        for push in pushes:
            self._settle(push)
        return [Version(self.version, pushes), *(event for push in held for event in self._offer(push, now))]

    def _settle(self, push: Contribution) -> None:
        if push.source not in self.clocks:
            self._left[push.source] += 1
            return
        self.clocks[push.source] += 1
        self.leads[push.source] = self.policy.lead(self, push.source)
