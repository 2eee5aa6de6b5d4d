"""Gradient coding: every rank computes more, so that nobody waits for the slowest, and no gradient is lost."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from byteps_like.errors import InvalidArgumentError
from byteps_like.store.combining.decoded import Decoded
from byteps_like.store.combining.gradient_code import GradientCode

LARGEST = 100.0
"""Greatest factor: by so much rounding errors of contributions may grow."""
_SEEDS = 200
_MOST_SETS = 2000
"""Of missing ranks, that are looked at for each seed; of more so many, drawn at random."""


class GradientCoding:
    """Of `n` ranks any `s` may be late: those that are there decode the gradient of the whole batch.

    A batch is cut into n parts, of which each rank computes s + 1. What it pushes is the sum of their gradients, each
    multiplied by its factor; servers, with `consistency` and `combine`, make versions of the first n - s contributions.

        coding = bps.GradientCoding(bps.size(), s=1)
        optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters(), **coding.options)
        loss = sum(factor * criterion(model(x[part]), y[part]) for part, factor in coding.factors(bps.rank()).items())

    Each step costs s + 1 times the computation, so it pays where ranks stall for much longer than they compute. Tandon
    et al., "Gradient coding", ICML 2017.
    """

    def __init__(self, n: int, s: int) -> None:
        """Raises InvalidArgumentError unless 0 <= s < n <= 64, and if no code is found whose factors are below 100."""
        self.code = _small(GradientCode(n, s))

    def parts(self, rank: int) -> list[int]:
        """The parts that a rank computes, of 0 to n - 1."""
        return self.code.parts(rank)

    def factors(self, rank: int) -> dict[int, float]:
        """Part -> by what its gradient, the mean over its samples, is multiplied before the rank adds them up."""
        return dict(zip(self.code.parts(rank), self.code.row(rank), strict=True))

    @property
    def options(self) -> dict[str, str]:
        """Of Store and DistributedOptimizer: the mean over all parts, as soon as n - s ranks are there."""
        return {"consistency": f"k_of_n:k={self.code.n - self.code.s}", "combine": Decoded(self.code).text()}


def _small(code: GradientCode) -> GradientCode:
    """With the first seed that makes all factors small. All ranks find the same."""
    if code.repeats or code.s == 0:
        return code
    sets = list(_sets(code))
    for seed in range(_SEEDS):
        seeded = replace(code, seed=seed)
        if all(_largest(seeded, present) < LARGEST for present in sets):
            return seeded
    raise InvalidArgumentError(
        f"gradient coding of n={code.n} ranks against s={code.s} missing ones needs factors above {LARGEST:g}, which"
        " make rounding errors large: take a smaller s, or one where s + 1 divides n"
    )


def _sets(code: GradientCode) -> Iterator[list[int]]:
    if math.comb(code.n, code.s) <= _MOST_SETS:
        every: Iterator[Sequence[int]] = itertools.combinations(range(code.n), code.s)
    else:
        draw = random.Random(0)
        every = (draw.sample(range(code.n), code.s) for _ in range(_MOST_SETS))
    for gone in every:
        yield [rank for rank in range(code.n) if rank not in gone]


def _largest(code: GradientCode, present: list[int]) -> float:
    numbers = [*code.decoded(present), *(factor for rank in present for factor in code.row(rank))]
    return max(abs(one) if one == one else float("inf") for one in numbers)
