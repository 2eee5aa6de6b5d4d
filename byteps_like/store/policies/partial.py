"""Partial rounds: a version is made of the first k pushes, so nobody waits for the slowest.

Chen et al., "Revisiting distributed synchronous SGD", ICLR workshop 2016 (backup workers; what comes late is dropped);
FedSA (Ma et al., JSAC 2021) and n-softsync (Zhang et al., IJCAI 2016), where it goes into the next version.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal

from typing_extensions import override

from byteps_like.errors import InvalidArgumentError
from byteps_like.store.policies.policy import NOTHING, NOW, Contribution, Key, Policy, PushVerdict, whole

AUTO = "auto"


class Partial(Policy):
    """A version is made when as many pushes as are `needed` are here and `grace` is over, or all are here."""

    grace: float | Literal["auto"] = 0.0
    late: Literal["drop", "next"] = "drop"
    max_age: float = math.inf

    @abstractmethod
    def needed(self, live: int) -> int:
        """How many pushes a version needs while so many sources live: at least 1, at most all."""

    @override
    def least(self, ranks: int) -> int:
        return self.needed(ranks) if self.late == "drop" else 0

    @override
    def on_push(self, key: Key, push: Contribution) -> PushVerdict:
        allowed = self.max_age if self.late == "next" else 0
        return PushVerdict.COUNT if key.version - push.base <= allowed else PushVerdict.LATE

    @override
    def ready_at(self, key: Key) -> float | None:
        here, live = key.open.pushes.keys(), key.clocks.keys()
        needed = self.needed(len(live))
        if not here or (len(here) < needed and not live <= here):
            return None
        if live <= here:
            return NOW
        if isinstance(self.grace, str):
            return _last_worth_waiting(key)
        return key.open.times[needed - 1] + self.grace

    @override
    def may_read(self, key: Key, reader: int) -> bool:
        return key.version > key.bases.get(reader, NOTHING)


@dataclass(frozen=True)
class KOfN(Partial):
    """A version is made when k pushes are here and `grace` is over, or all are here."""

    name = "k_of_n"

    k: int
    """Pushes of as many sources; of all live ones, if they are fewer."""
    grace: float | Literal["auto"] = 0.0
    """Seconds, from the k-th on, in which more may come. "auto": as long as one more push makes the contributions per
    second rise, by the average interval between pushes."""
    late: Literal["drop", "next"] = "drop"
    """What becomes of pushes computed on a version before the one in force."""
    max_age: float = math.inf
    """With late="next": older ones are dropped all the same; in versions."""

    def __post_init__(self) -> None:
        if whole("k", self.k) < 1:
            raise InvalidArgumentError(f"k={self.k}: a version needs at least one contribution")
        if self.late not in ("drop", "next"):
            raise InvalidArgumentError(f'late={self.late!r}: late contributions can be "drop" or "next"')
        if self.grace != AUTO and not (isinstance(self.grace, int | float) and 0 <= self.grace < math.inf):
            raise InvalidArgumentError(f'grace={self.grace!r} is neither a number of seconds from 0 on, nor "auto"')
        if not self.max_age >= 0:
            raise InvalidArgumentError(f"max_age={self.max_age} versions: no contribution is younger than 0")

    @override
    def check(self, ranks: int) -> None:
        if self.k > ranks:
            raise InvalidArgumentError(f"k={self.k} contributions can't come from {ranks} ranks: k is at most {ranks}")

    @override
    def needed(self, live: int) -> int:
        return min(self.k, live)


@dataclass(frozen=True)
class Backup(Partial):
    """Of n live sources b are spares: a version is made of the first n - b pushes, and the others' are dropped."""

    name = "backup"

    b: int = 1

    def __post_init__(self) -> None:
        if whole("b", self.b) < 0:
            raise InvalidArgumentError(f"b={self.b}: there can't be fewer than 0 spare ranks")

    @override
    def check(self, ranks: int) -> None:
        if self.b >= ranks:
            raise InvalidArgumentError(f"b={self.b} spare ranks of {ranks} leave none: b is at most {ranks - 1}")

    @override
    def needed(self, live: int) -> int:
        return max(live - self.b, 1)


def _last_worth_waiting(key: Key) -> float:
    """With k pushes after T seconds, one more raises the rate if it comes within T / k."""
    worth = (key.open.times[-1] - key.open.since) / len(key.open.times)
    return NOW if key.gap is None or key.gap >= worth else key.open.times[-1] + worth
