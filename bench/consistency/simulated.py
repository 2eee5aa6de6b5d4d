"""The steps of all ranks under a policy, simulated: the policy itself and the ledger of servers, ideal links, no cores.

A step computes, sends all of the model, waits as the policy says, and receives all of it. Each rank has a link, and all
servers together have one that is wider, both ways; what comes while it is busy waits. Calls take no time.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.consistency.turns import RankTurn
from byteps_like.store.gradient_estimate import GradientEstimate
from byteps_like.store.ledger import Ledger, Version
from byteps_like.store.policies.policy import Contribution
from byteps_like.store.policies.registry import policy_of

Compute = Callable[[int, int], float]
"""Seconds that a rank's step takes."""


@dataclass(frozen=True)
class Case:
    """`own` and `shared`: seconds that the model takes on a rank's link, and on those of all servers. `steps` of each
    rank, 0 of one that sits out; or all go on until there are so many `versions`."""

    policy: str
    steps: tuple[int, ...]
    compute: Compute
    own: float = 0.0
    shared: float = 0.0
    versions: int | None = None
    observe: Callable[[float, Sequence[Contribution]], GradientEstimate | None] | None = None
    """Told when a version is made, and of what; what these tell of the gradient, where the policy wants to know it."""


@dataclass
class _Rank:
    turn: RankTurn = field(default_factory=RankTurn)
    base: int = 0
    sent_at: float | None = None
    """When what it waits for began to travel."""


class Simulation:
    """One turn. Times are seconds."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._ranks = [_Rank() for _ in case.steps]
        active = [rank for rank, steps in enumerate(case.steps) if steps]
        self._ledger = Ledger(policy_of(case.policy, len(case.steps)), range(len(case.steps)))
        for absent in set(range(len(case.steps))) - set(active) if case.policy == "bsp" else ():
            self._ledger.lose(absent, 0.0)
        self._order = itertools.count()
        self._events: list[tuple[float, int, Callable[[float, int], None], int]] = []
        self._busy = {"up": 0.0, "down": 0.0}
        self._waiting: set[int] = set()
        for rank in active:
            self._compute(0.0, rank)

    def run(self) -> list[RankTurn]:
        """What every rank does."""
        while self._events:
            now, _, event, rank = heapq.heappop(self._events)
            event(now, rank)
        return [rank.turn for rank in self._ranks]

    def _at(self, time: float, event: Callable[[float, int], None], rank: int) -> None:
        heapq.heappush(self._events, (time, next(self._order), event, rank))

    def _compute(self, now: float, rank: int) -> None:
        step = len(self._ranks[rank].turn.landed)
        self._at(now + self._case.compute(rank, step), self._send, rank)

    def _send(self, now: float, rank: int) -> None:
        self._ranks[rank].sent_at = now
        self._at(self._crossed(now, "up"), self._arrive, rank)

    def _crossed(self, now: float, way: str) -> float:
        self._busy[way] = max(self._busy[way], now) + self._case.shared
        return max(self._busy[way], now + self._case.own)

    def _arrive(self, now: float, rank: int) -> None:
        push = Contribution(rank, self._ledger.clock(rank), self._ranks[rank].base)
        for event in self._ledger.push(push, now):
            if isinstance(event, Version):
                for one in event.pushes:
                    self._ranks[one.source].turn.ages.append(event.age(one))
                self._observe(now, event)
        self._waiting.add(rank)
        for reader in [one for one in sorted(self._waiting) if self._ledger.may_read(one)]:
            self._waiting.remove(reader)
            self._ranks[reader].base = self._ledger.version
            self._at(self._crossed(now, "down"), self._land, reader)

    def _observe(self, now: float, version: Version) -> None:
        seen = self._case.observe(now, version.pushes) if self._case.observe is not None else None
        if seen is not None:
            self._ledger.observe(seen)

    def _land(self, now: float, rank: int) -> None:
        one = self._ranks[rank]
        one.turn.landed.append(now)
        one.turn.versions.append(one.base)
        assert one.sent_at is not None
        one.turn.blocked.append(now - one.sent_at)
        if not self._done(rank):
            self._compute(now, rank)

    def _done(self, rank: int) -> bool:
        if self._case.versions is not None:
            return self._ranks[rank].base >= self._case.versions
        return len(self._ranks[rank].turn.landed) >= self._case.steps[rank]


def simulated(case: Case) -> list[RankTurn]:
    """What every rank does."""
    return Simulation(case).run()
