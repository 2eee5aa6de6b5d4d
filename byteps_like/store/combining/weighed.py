"""Weighed sums and means: g = Σ dᵢ wᵢ gᵢ / D, with D = 1 for a sum and Σ wᵢ for a mean.

Weights w count in D, so what is mostly old is averaged, not shrunk; damping d does not, so an old single contribution
has less effect (Zhang et al., "Staleness-aware async-SGD", IJCAI 2016).

The native twin (server/store/combining/weighed.h) adds D up as this does, from the first contribution to the last, each
addition rounded by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from typing_extensions import override

from byteps_like.errors import InvalidArgumentError
from byteps_like.store.combining.combining import Combining, check_weight
from byteps_like.store.ledger import Version

AgeFactor = Callable[[int], float]
"""By what a contribution counts that is so many versions old: above 0."""

_OLDEST = 1000
"""Beyond, `exp` falls no more: a mean of contributions so old would be a quotient of zeros."""

AGES: dict[str, AgeFactor] = {
    "inverse": lambda age: 1.0 / max(age, 1),
    # Chen et al., "Temporally weighted asynchronous FL", TNNLS 2019
    "exp": lambda age: (math.e / 2) ** -min(age, _OLDEST),
}
"""By name, as in texts. Servers know these."""

COMBINES = ("sum", "mean")


@dataclass(frozen=True)
class Weighed(Combining):
    """A sum or a mean.

    Raises InvalidArgumentError for an unknown `combine` or factor.
    """

    combine: str = "mean"
    age: str | AgeFactor | None = None
    damp: str | AgeFactor | None = None

    def __post_init__(self) -> None:
        if self.combine not in COMBINES:
            raise InvalidArgumentError(
                f"combine={self.combine!r}: contributions can be combined by {' or '.join(COMBINES)}"
            )
        for factor in (self.age, self.damp):
            age_factor(factor)

    @property
    @override
    def adds_integers(self) -> bool:
        return (self.combine, self.age, self.damp) == ("sum", None, None)

    @override
    def text(self) -> str:
        """As "mean:age=none,damp=none". Servers know age factors that have names, no functions."""
        words = []
        for key, factor in (("age", self.age), ("damp", self.damp)):
            if callable(factor):
                known = ", ".join(sorted(AGES))
                raise InvalidArgumentError(
                    f"{key}={factor!r} is a function, which servers don't know; they know {known}"
                )
            words.append(f"{key}={factor or 'none'}")
        return f"{self.combine}:{','.join(words)}"

    @override
    def factors(self, version: Version) -> list[float]:
        ages = [version.age(push) for push in version.pushes]
        weights = [push.weight for push in version.pushes]
        counts = [check_weight(weight) * own for weight, own in zip(weights, _all(self.age, ages), strict=True)]
        total = _added(counts) if self.combine == "mean" else 1.0
        return [damped * count / total for damped, count in zip(_all(self.damp, ages), counts, strict=True)]


def age_factor(wanted: str | AgeFactor | None) -> AgeFactor:
    """The factor of that name; None: 1 at any age. Raises InvalidArgumentError for an unknown one."""
    if wanted is None:
        return lambda _: 1.0
    if callable(wanted):
        return wanted
    if wanted not in AGES:
        raise InvalidArgumentError(f"there is no age factor {wanted!r}; these are known: {', '.join(sorted(AGES))}")
    return AGES[wanted]


def _added(numbers: Sequence[float]) -> float:
    total = 0.0
    for number in numbers:  # `sum` compensates for rounding from Python 3.12 on
        total += number
    return total


def _all(wanted: str | AgeFactor | None, ages: Sequence[int]) -> list[float]:
    factor = age_factor(wanted)
    return [_above_0(factor(age)) for age in ages]


def _above_0(factor: float) -> float:
    if not 0 < factor < math.inf:
        raise InvalidArgumentError(f"age factor {factor}: it must be a number above 0")
    return factor
