"""Gradient codes: each rank computes s + 1 of n parts of a batch, and any n - s ranks have the whole batch's gradient.

Tandon et al., "Gradient coding: avoiding stragglers in distributed learning", ICML 2017. Where s + 1 divides n, groups
of s + 1 ranks compute the same parts (their fractional repetition); else rank i computes the parts from i on, in a
circle, and sends Σ_j B_ij g_j, where the rows of B are orthogonal to a random H of s rows that sum to 0.

All arithmetic is of fp64 in a fixed order: servers (server/store/combining/gradient_code.h) have the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from byteps_like.errors import InvalidArgumentError

MOST_RANKS = 64
_MASK = (1 << 64) - 1

Matrix = list[list[float]]


@dataclass(frozen=True)
class GradientCode:
    """The code of `n` ranks of which any `s` may be missing; `seed` is that of H.

    Raises InvalidArgumentError unless 0 <= s < n <= 64.
    """

    n: int
    s: int
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.s < self.n <= MOST_RANKS:
            raise InvalidArgumentError(
                f"a gradient code of n={self.n} ranks, of which s={self.s} may be missing: s is from 0 to n - 1, and n"
                f" at most {MOST_RANKS}"
            )

    @property
    def repeats(self) -> bool:
        """Whether groups of ranks compute the same."""
        return self.n % (self.s + 1) == 0

    def parts(self, rank: int) -> list[int]:
        """Those that a rank computes, of 0 to n - 1."""
        first = rank - rank % (self.s + 1) if self.repeats else rank
        return [(first + number) % self.n for number in range(self.s + 1)]

    def row(self, rank: int) -> list[float]:
        """By what the gradient of each of `parts(rank)` is multiplied, before the rank adds them up."""
        if self.repeats:
            return [1.0] * (self.s + 1)
        support = self.parts(rank)
        columns = [[line[part] for part in support[1:]] for line in self._h]
        return [1.0, *solved(columns, [-line[support[0]] for line in self._h])]

    def decoded(self, present: Sequence[int]) -> list[float]:
        """By what the sum of each of the `present` ranks, which ascend, is multiplied, so that all add up to the sum of
        all n parts; [] if that can't be, because more than s are missing."""
        return self._chosen(present) if self.repeats else self._solved(present)

    def _chosen(self, present: Sequence[int]) -> list[float]:
        """The first of each group."""
        width, found, factors = self.s + 1, set[int](), []
        for rank in present:
            factors.append(0.0 if rank // width in found else 1.0)
            found.add(rank // width)
        return factors if len(found) * width == self.n else []

    def _solved(self, present: Sequence[int]) -> list[float]:
        """The first n - s."""
        needed = self.n - self.s
        if len(present) < needed:
            return []
        columns: Matrix = [[0.0] * needed for _ in range(self.n)]
        for place, rank in enumerate(present[:needed]):
            for part, factor in zip(self.parts(rank), self._rows[rank], strict=True):
                columns[part][place] = factor
        return solved(columns, [1.0] * self.n) + [0.0] * (len(present) - needed)

    @cached_property
    def _rows(self) -> Matrix:
        return [self.row(rank) for rank in range(self.n)]

    @cached_property
    def _h(self) -> Matrix:
        lines = []
        for line in range(self.s):
            numbers = [_drawn(self.seed, line * self.n + part) for part in range(self.n - 1)]
            total = 0.0
            for number in numbers:
                total += number
            lines.append([*numbers, -total])
        return lines


def solved(matrix: Matrix, right: Sequence[float]) -> list[float]:
    """x of `matrix` x = `right`, by elimination with the greatest pivot of each column; more lines than columns are
    taken to agree. Of a singular one whatever comes of it, also infinities and NaNs."""
    lines = [[*line, value] for line, value in zip(matrix, right, strict=True)]
    width = len(matrix[0]) if matrix else 0
    for column in range(width):
        pivot = max(range(column, len(lines)), key=lambda line: abs(lines[line][column]))
        lines[column], lines[pivot] = lines[pivot], lines[column]
        _eliminate(lines, column, width)
    return _substituted(lines, width)


def _eliminate(lines: Matrix, column: int, width: int) -> None:
    top = lines[column]
    for line in lines[column + 1 :]:
        factor = line[column] / top[column] if top[column] else float("nan")
        for place in range(column, width + 1):
            line[place] -= factor * top[place]


def _substituted(lines: Matrix, width: int) -> list[float]:
    found = [0.0] * width
    for row in range(width - 1, -1, -1):
        value = lines[row][width]
        for place in range(row + 1, width):
            value -= lines[row][place] * found[place]
        found[row] = value / lines[row][row] if lines[row][row] else float("nan")
    return found


def _drawn(seed: int, number: int) -> float:
    """From -1/2 to 1/2: SplitMix64's output of that number."""
    word = (seed * 0xD1342543DE82EF95 + (number + 1) * 0x9E3779B97F4A7C15) & _MASK
    word = ((word ^ word >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    word = ((word ^ word >> 27) * 0x94D049BB133111EB) & _MASK
    return ((word ^ word >> 31) >> 11) * 2.0**-53 - 0.5
