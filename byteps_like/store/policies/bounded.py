"""Stale-synchronous and asynchronous: every push makes a version at once, and who is too far ahead waits to read.

Ho et al., "More effective distributed ML via a stale synchronous parallel parameter server", NeurIPS 2013; Zhao et al.,
"Dynamic stale synchronous parallel distributed training for deep learning", ICDCS 2019.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from typing_extensions import override

from byteps_like.errors import InvalidArgumentError
from byteps_like.store.policies.policy import NOW, Contribution, Key, Policy, PushPace, PushVerdict, whole


class EachAtOnce(Policy):
    """Versions of one push each."""

    has_rounds = False

    @override
    def on_push(self, key: Key, push: Contribution) -> PushVerdict:
        return PushVerdict.COUNT

    @override
    def ready_at(self, key: Key) -> float | None:
        return NOW if key.open.pushes else None

    @override
    def may_read(self, key: Key, reader: int) -> bool:
        return key.clocks[reader] - key.least <= key.leads.get(reader, math.inf)


@dataclass(frozen=True)
class Asp(EachAtOnce):
    """Nobody ever waits."""

    name = "asp"


@dataclass(frozen=True)
class Ssp(EachAtOnce):
    """Who has pushed more than `s` times oftener than the slowest live source waits before it reads."""

    name = "ssp"

    s: int

    def __post_init__(self) -> None:
        if whole("s", self.s) < 0:
            raise InvalidArgumentError(f"s={self.s}: a source can't be ahead by fewer than 0 clocks")

    @override
    def lead(self, key: Key, source: int) -> float:
        return self.s


@dataclass(frozen=True)
class Dssp(EachAtOnce):
    """As Ssp, with a bound from `lo` to `hi` for each source: the one after which it will have to wait least, by how
    long the source and the slowest have taken for their last clock."""

    name = "dssp"

    lo: int
    hi: int

    def __post_init__(self) -> None:
        if whole("lo", self.lo) < 0:
            raise InvalidArgumentError(f"lo={self.lo}: a source can't be ahead by fewer than 0 clocks")
        if self.lo > whole("hi", self.hi):
            raise InvalidArgumentError(f"lo={self.lo} is greater than hi={self.hi}")

    @override
    def lead(self, key: Key, source: int) -> float:
        ahead = key.clocks[source] - key.least
        if ahead < self.lo:
            return self.lo
        if ahead > self.lo:
            granted = key.leads.get(source, math.inf)
            return self.lo if granted == math.inf else min(max(granted, self.lo), self.hi)
        slowest = min(key.clocks, key=lambda one: (key.clocks[one], one))
        return self.lo + extra(key.paces[source], key.paces.get(slowest, PushPace()), self.hi - self.lo)


def extra(fast: PushPace, slow: PushPace, most: int) -> int:
    """How many clocks, from 0 to `most`, the faster one should go on before it waits for the end of a clock of the
    slower one, so as to wait least; of equally good ones the smallest."""
    if not fast.interval or not slow.interval:
        return 0

    fast_interval, slow_interval = fast.interval, slow.interval

    def wait(clocks: int) -> float:
        arrives = fast.last + clocks * fast_interval
        ends = max(0, math.ceil((arrives - slow.last) / slow_interval))
        return slow.last + ends * slow_interval - arrives

    return min(range(most + 1), key=wait)
