"""How the contributions of a version become one gradient: g = Σ dᵢ wᵢ gᵢ / D, with D = 1 for a sum and Σ wᵢ for a mean.

Weights w count in D, so what is mostly old is averaged, not shrunk; damping d does not, so an old single contribution
has less effect (Zhang et al., "Staleness-aware async-SGD", IJCAI 2016).

Servers do it with a twin of this (server/store/combining.h), which gives the same bits: factors are fp64, and D is
added up from the first contribution to the last, each addition rounded by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from byteps_like.compression.spec import parse
from byteps_like.errors import InvalidArgumentError
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

_LEAST_WEIGHT, _MOST_WEIGHT = 2.0**-149, 2.0**128 - 2.0**104
"""Of fp32, as which weights travel. So no product of a weight and an age factor is 0, and no sum infinite."""


@dataclass(frozen=True)
class Combining:
    """How the contributions of a version become one gradient. See `factors`.

    Raises InvalidArgumentError for an unknown `combine` or factor.
    """

    combine: str = "mean"
    age: str | AgeFactor | None = None
    damp: str | AgeFactor | None = None

    def __post_init__(self) -> None:
        _check_combine(self.combine)
        for factor in (self.age, self.damp):
            age_factor(factor)

    @property
    def adds_integers(self) -> bool:
        """Whether every factor is the contribution's own weight."""
        return (self.combine, self.age, self.damp) == ("sum", None, None)

    def text(self) -> str:
        """As servers read it: "mean:age=none,damp=none". Equal texts mean equal ways.

        Raises InvalidArgumentError for an age factor that is a function: servers know those with names.
        """
        words = []
        for key, factor in (("age", self.age), ("damp", self.damp)):
            if callable(factor):
                known = ", ".join(sorted(AGES))
                raise InvalidArgumentError(
                    f"{key}={factor!r} is a function, which servers don't know; they know {known}"
                )
            words.append(f"{key}={factor or 'none'}")
        return f"{self.combine}:{','.join(words)}"


def combining_of(text: str) -> Combining:
    """What a text means: "sum", "mean:age=exp", "sum:damp=inverse". Raises InvalidArgumentError for one that isn't."""
    try:
        combine, given = parse(text)
    except ValueError as error:
        raise InvalidArgumentError(f"combining: {error}") from None
    if unknown := sorted(given.keys() - {"age", "damp"}):
        raise InvalidArgumentError(f"combining {text!r}: there is no {unknown[0]}; there are age and damp")
    return Combining(combine, **{key: None if word == "none" else word for key, word in given.items()})


def age_factor(wanted: str | AgeFactor | None) -> AgeFactor:
    """The factor of that name; None: 1 at any age. Raises InvalidArgumentError for an unknown one."""
    if wanted is None:
        return lambda _: 1.0
    if callable(wanted):
        return wanted
    if wanted not in AGES:
        raise InvalidArgumentError(f"there is no age factor {wanted!r}; these are known: {', '.join(sorted(AGES))}")
    return AGES[wanted]


def factors(
    version: Version, combine: str = "mean", age: str | AgeFactor | None = None, damp: str | AgeFactor | None = None
) -> list[float]:
    """By what each contribution of `version` is multiplied, before they are added up: float64.

    Raises InvalidArgumentError for an unknown `combine` or factor, and for a weight or a factor that isn't above 0.
    """
    _check_combine(combine)
    ages = [version.age(push) for push in version.pushes]
    weights = [push.weight for push in version.pushes]
    counts = [check_weight(weight) * own for weight, own in zip(weights, _all(age, ages), strict=True)]
    total = _added(counts) if combine == "mean" else 1.0
    return [damped * count / total for damped, count in zip(_all(damp, ages), counts, strict=True)]


def check_weight(weight: float) -> float:
    """`weight` itself. Raises InvalidArgumentError if nothing can be combined by it."""
    if not _LEAST_WEIGHT <= weight <= _MOST_WEIGHT:
        raise InvalidArgumentError(f"weight {weight}: it must be a number above 0 that fp32 can hold")
    return weight


def _added(numbers: Sequence[float]) -> float:
    total = 0.0
    for number in numbers:  # `sum` compensates for rounding from Python 3.12 on
        total += number
    return total


def _check_combine(combine: str) -> None:
    if combine not in COMBINES:
        raise InvalidArgumentError(f"combine={combine!r}: contributions can be combined by {' or '.join(COMBINES)}")


def _all(wanted: str | AgeFactor | None, ages: Sequence[int]) -> list[float]:
    factor = age_factor(wanted)
    return [_above_0(factor(age)) for age in ages]


def _above_0(factor: float) -> float:
    if not 0 < factor < math.inf:
        raise InvalidArgumentError(f"age factor {factor}: it must be a number above 0")
    return factor
