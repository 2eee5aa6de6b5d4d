"""Partial rounds: a version is made of the first k pushes, so nobody waits for the slowest.

Chen et al., "Revisiting distributed synchronous SGD", ICLR workshop 2016 (backup workers; what comes late is dropped);
FedSA (Ma et al., JSAC 2021) and n-softsync (Zhang et al., IJCAI 2016), where it goes into the next version; LGC (Xu et
al., INFOCOM 2021), where slow ranks bring by then what they have finished, and the rest goes into the next.
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
_LEAST_SECONDS = 1e-9
"""Of a round, to divide by."""


class Partial(Policy):
    """A version is made when the last blocks of as many sources as are `needed` are here and `grace` is over, or
    nothing is to be had of others: a source brings blocks before its last one at one time, not in each version."""

    grace: float | Literal["auto"] = 0.0
    late: Literal["drop", "next"] = "drop"
    max_age: float = math.inf

    @abstractmethod
    def needed(self, key: Key) -> int:
        """How many sources' last blocks the open version needs: at least 1, at most those of all live ones."""

    @override
    def on_push(self, key: Key, push: Contribution) -> PushVerdict:
        allowed = self.max_age if self.late == "next" else 0
        return PushVerdict.COUNT if key.version - push.base <= allowed else PushVerdict.LATE

    @override
    def ready_at(self, key: Key) -> float | None:
        finished, live = key.open.finished, key.clocks.keys()
        if not key.open.pushes:
            return None
        if live <= finished.keys():
            return NOW
        needed = self.needed(key)
        if len(finished) < needed:
            return None
        if live <= key.open.sources | key.unfinished:
            return NOW
        if isinstance(self.grace, str):
            return _last_worth_waiting(key)
        return [*finished.values()][needed - 1] + self.grace

    @override
    def may_read(self, key: Key, reader: int) -> bool:
        return key.version > key.bases.get(reader, NOTHING)


@dataclass(frozen=True)
class KOfN(Partial):
    """A version is made when k pushes are here and `grace` is over, or all are here."""

    name = "k_of_n"

    k: int | Literal["auto"]
    """Pushes of as many sources; of all live ones, if they are fewer. "auto": as many as bring the value on fastest, by
    what gradients are like and when they come (`best_count`)."""
    grace: float | Literal["auto"] = 0.0
    """Seconds, from the k-th on, in which more may come; ranks that are behind are told, to bring the blocks that they
    have finished. "auto": as long as one more push makes the contributions per second rise, by the average interval
    between pushes."""
    late: Literal["drop", "next"] = "drop"
    """What becomes of pushes computed on a version before the one in force."""
    max_age: float = math.inf
    """With late="next": older ones are dropped all the same; in versions."""

    def __post_init__(self) -> None:
        if self.k != AUTO and whole("k", self.k) < 1:
            raise InvalidArgumentError(f"k={self.k}: a version needs at least one contribution")
        if self.late not in ("drop", "next"):
            raise InvalidArgumentError(f'late={self.late!r}: late contributions can be "drop" or "next"')
        if self.grace != AUTO and not (isinstance(self.grace, int | float) and 0 <= self.grace < math.inf):
            raise InvalidArgumentError(f'grace={self.grace!r} is neither a number of seconds from 0 on, nor "auto"')
        if not self.max_age >= 0:
            raise InvalidArgumentError(f"max_age={self.max_age} versions: no contribution is younger than 0")

    @override
    def check(self, ranks: int) -> None:
        if isinstance(self.k, int) and self.k > ranks:
            raise InvalidArgumentError(f"k={self.k} contributions can't come from {ranks} ranks: k is at most {ranks}")

    @property
    @override
    def observes(self) -> bool:
        return self.k == AUTO

    @override
    def least(self, ranks: int) -> int:
        return (min(self.k, ranks) if isinstance(self.k, int) else 1) if self.late == "drop" else 0

    @override
    def needed(self, key: Key) -> int:
        return min(self.k, len(key.clocks)) if isinstance(self.k, int) else best_count(key)


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
    def least(self, ranks: int) -> int:
        return max(ranks - self.b, 1)

    @override
    def needed(self, key: Key) -> int:
        return max(len(key.clocks) - self.b, 1)


def _last_worth_waiting(key: Key) -> float:
    """With k pushes after T seconds, one more raises the rate if it comes within T / k."""
    times = [*key.open.finished.values()]
    worth = (times[-1] - key.open.since) / len(times)
    return NOW if key.gap is None or key.gap >= worth else times[-1] + worth


def best_count(key: Key) -> int:
    """Of how many contributions versions bring the value on fastest.

    With k of them, of a gradient of the squared norm F and the variance s, the loss falls by about F - s / k per
    version, if the rate is well chosen, and a version takes until the k-th has come: k is that of the greatest
    (F - s / k) / T_k. T_k is the mean over the last rounds in which k came of contributions computed on their version.
    Where nothing is above 0 all are needed; so they are while nothing is known.

    Xu, Neglia and Sebastianelli, "Dynamic backup workers for parallel machine learning", Computer Networks 2021.
    """
    live = len(key.clocks)
    if not key.estimates:
        return live
    square = sum(one.square for one in key.estimates) / len(key.estimates)
    noise = sum(one.noise for one in key.estimates) / len(key.estimates)
    best, fastest = live, 0.0
    for count in range(1, live + 1):
        times = [one.times[count - 1] for one in list(key.rounds)[:-1] if len(one.times) >= count]
        if not times:
            break  # of more not either
        rate = (square - noise / count) / max(sum(times) / len(times), _LEAST_SECONDS)
        if rate > fastest:
            best, fastest = count, rate
    return best
