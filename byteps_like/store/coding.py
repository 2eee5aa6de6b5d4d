"""Gradient coding: each rank computes s + 1 of n portions of a batch and pushes one combination of their gradients, so
that the sum over all portions follows from what any n - s ranks push.

Tandon, Lei, Dimakis, Karampatziakis: "Gradient coding: avoiding stragglers in distributed learning", ICML 2017. Its
fractional repetition where s + 1 divides n, whose coefficients are 0 and 1, else its cyclic scheme.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from byteps_like.errors import InvalidArgumentError, StalledError

Floats = npt.NDArray[np.float64]

LARGEST = 100.0
"""No coefficient may be larger: it multiplies the rounding errors of the gradients."""

_TRIES = 64
"""Random schemes, of which the best is taken."""
_SETS = 256
"""Of ranks, by which they are compared where there are more."""


class GradientCode:
    """The scheme of `n` ranks of which any `s` may be missing. Equal on all ranks. Immutable.

    Raises InvalidArgumentError unless 0 <= s < n, or if every scheme found needs coefficients above LARGEST.
    """

    def __init__(self, n: int, s: int) -> None:
        if not 0 <= s < n:
            raise InvalidArgumentError(f"s={s} ranks that may be missing: of n={n} it must be from 0 to {n - 1}")
        self.n, self.s = n, s
        self.matrix: Floats = _repetition(n, s) if n % (s + 1) == 0 else _cyclic(n, s)
        """(n, n), float64: in row r, by what rank r multiplies the gradient of each portion."""
        self._solved: dict[tuple[int, ...], tuple[float, ...]] = {}

    def portions(self, rank: int) -> list[int]:
        """The s + 1 that `rank` computes."""
        return [int(portion) for portion in np.flatnonzero(self.matrix[rank])]

    def coefficients(self, rank: int) -> list[float]:
        """By what it multiplies the gradient of each of them, before it adds them up."""
        return [float(self.matrix[rank, portion]) for portion in self.portions(rank)]

    def decode(self, ranks: tuple[int, ...]) -> tuple[float, ...]:
        """By what the pushes of `ranks` (ascending) are multiplied so that their sum is that of all portions.

        Raises StalledError if they are fewer than n - s.
        """
        if len(ranks) < self.n - self.s:
            raise StalledError(f"{len(ranks)} of {self.n} ranks are here, {list(ranks)}: {self.n - self.s} are needed")
        if ranks not in self._solved:
            self._solved[ranks] = tuple(float(one) for one in _solve(self.matrix, ranks))
        return self._solved[ranks]


def _repetition(n: int, s: int) -> Floats:
    """s + 1 groups of ranks, each of which has all portions: one group is always complete."""
    matrix, each = np.zeros((n, n)), n // (s + 1)
    for rank in range(n):
        first = (rank % each) * (s + 1)
        matrix[rank, first : first + s + 1] = 1.0
    return matrix


def _cyclic(n: int, s: int) -> Floats:
    sets = list(itertools.islice(_sets(n, s), _SETS))
    found = [_random_cyclic(n, s, seed) for seed in range(_TRIES)]
    sizes = [max(abs(_solve(matrix, ranks)).max() for ranks in sets) for matrix in found]
    best = min(range(_TRIES), key=lambda seed: max(sizes[seed], abs(found[seed]).max()))
    largest = max(sizes[best], float(abs(found[best]).max()))
    if largest > LARGEST:
        raise InvalidArgumentError(
            f"a code of n={n} ranks of which s={s} may be missing needs coefficients up to {largest:.0f}, which"
            f" multiply rounding errors (at most {LARGEST:.0f}): choose s so that s + 1 divides n, or a smaller one"
        )
    return found[best]


def _sets(n: int, s: int) -> itertools.chain[tuple[int, ...]]:
    """Of ranks that may be all that come: all if they are few, else random ones."""
    if math.comb(n, s) <= _SETS:
        return itertools.chain(itertools.combinations(range(n), n - s))
    draw = np.random.default_rng(0)
    some = (tuple(sorted(int(one) for one in draw.choice(n, n - s, replace=False))) for _ in range(_SETS))
    return itertools.chain(some)


def _random_cyclic(n: int, s: int, seed: int) -> Floats:
    """Rows with s + 1 neighbours, all orthogonal to s random rows whose sums are 0, hence so is the vector of ones."""
    checks = np.random.default_rng(seed).standard_normal((s, n))
    checks[:, -1] = -checks[:, :-1].sum(axis=1)
    matrix = np.zeros((n, n))
    for rank in range(n):
        own = [(rank + step) % n for step in range(s + 1)]
        matrix[rank, own] = [1.0, *np.linalg.solve(checks[:, own[1:]], -checks[:, own[0]])]
    return matrix


def _solve(matrix: Floats, ranks: Sequence[int]) -> Floats:
    solution = np.linalg.lstsq(matrix[list(ranks)].T, np.ones(matrix.shape[0]), rcond=None)[0]
    return np.asarray(solution, np.float64)
