"""How the contributions of a version become one gradient: g = Σ dᵢ wᵢ gᵢ / D, with D = 1 for a sum and Σ wᵢ for a mean.

Weights w count in D, so what is mostly old is averaged, not shrunk; damping d does not, so an old single contribution
has less effect (Zhang et al., "Staleness-aware async-SGD", IJCAI 2016).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from byteps_like.errors import InvalidArgumentError
from byteps_like.store.ledger import Version

AgeFactor = Callable[[int], float]
"""By what a contribution counts that is so many versions old: above 0."""

AGES: dict[str, AgeFactor] = {
    "inverse": lambda age: 1.0 / max(age, 1),
    "exp": lambda age: (math.e / 2) ** -age,  # Chen et al., "Temporally weighted asynchronous FL", TNNLS 2019
}
"""By name."""

COMBINES = ("sum", "mean")


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
    if combine not in COMBINES:
        raise InvalidArgumentError(f"combine={combine!r}: contributions can be combined by {' or '.join(COMBINES)}")
    ages = [version.age(push) for push in version.pushes]
    weights = [push.weight for push in version.pushes]
    counts = [_above_0("weight", weight) * own for weight, own in zip(weights, _all(age, ages), strict=True)]
    total = math.fsum(counts) if combine == "mean" else 1.0
    return [damped * count / total for damped, count in zip(_all(damp, ages), counts, strict=True)]


def _all(wanted: str | AgeFactor | None, ages: Sequence[int]) -> list[float]:
    factor = age_factor(wanted)
    return [_above_0("age factor", factor(age)) for age in ages]


def _above_0(what: str, value: float) -> float:
    if not 0 < value < math.inf:
        raise InvalidArgumentError(f"{what} {value}: it must be a number above 0")
    return value
