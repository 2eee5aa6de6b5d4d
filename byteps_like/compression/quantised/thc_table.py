"""The best tables for THC, by an exact dynamic program: which points of a grid should 2^bits codes stand for?

`python -m byteps_like.compression.quantised.thc_table` writes the native core's, compression/quantised/thc_tables.h.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import erf, exp, pi, sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


CLAMPS = {16: 1.862731867421651, 32: 2.1538746940614555, 64: 2.417559016236505}
"""By n, the t with P(|Z| > t) = 1/n for a standard normal Z. Literals, so that all machines have the same bits."""

LARGEST_SUM = {8: 255, 16: 65535}
"""By the bits of a sum."""


def segment_costs(points: Array) -> Array:
    """costs[i, j]: what coordinates in [points[i], points[j]] add to the variance if they are rounded to these two.

    That is the integral of (points[j] - a)(a - points[i]) over the normal density, in closed form; for i < j.
    """
    below = np.array([(1 + erf(point / sqrt(2))) / 2 for point in points])
    density = np.array([exp(-point * point / 2) / sqrt(2 * pi) for point in points])
    low, high = points[:, None], points[None, :]
    mass = below[None, :] - below[:, None]
    first = density[:, None] - density[None, :]
    second = mass + low * density[:, None] - high * density[None, :]
    costs: Array = (high + low) * first - second - high * low * mass
    return costs


@cache
def optimal_table(bits: int, granularity: int, one_in: int) -> tuple[int, ...]:
    """The table 0 = T[0] < ... < T[2^bits - 1] = granularity of least rounding variance. O(2^bits granularity^2).

    Code z stands for the coordinate (2 T[z] / granularity - 1) CLAMPS[one_in]. Li et al., "THC" (NSDI 2024), section
    5; here without its wish for symmetry. Raises ValueError for a grid of fewer points than codes.
    """
    codes = 1 << bits
    if granularity < codes - 1:
        raise ValueError(f"{codes} codes need a granularity of at least {codes - 1}, not {granularity}")
    costs = segment_costs(_grid(granularity, one_in))
    costs[np.tril_indices(granularity + 1)] = np.inf
    best, came_from = np.full(granularity + 1, np.inf), []
    best[0] = 0
    for _ in range(codes - 1):
        through = best[:, None] + costs
        best = through.min(axis=0)
        # Tables come in mirrored pairs: of equals the first, whatever the last bits of this machine's erf are.
        came_from.append((through <= best * (1 + 1e-11)).argmax(axis=0))
    table = [granularity]
    for back in reversed(came_from):
        table.append(int(back[table[-1]]))
    return tuple(reversed(table))


def table_cost(table: Sequence[int], one_in: int) -> float:
    """The rounding variance of a table, in units of the coordinates' own: without what the clamp cuts off."""
    points = _grid(table[-1], one_in)[list(table)]
    return float(np.trace(segment_costs(points), offset=1))


def clamp_cost(one_in: int) -> float:
    """What the clamp cuts off, squared: E[max(|Z| - t, 0)^2]."""
    t = CLAMPS[one_in]
    normal = NormalDist()
    return 2 * ((1 + t * t) * (1 - normal.cdf(t)) - t * normal.pdf(t))


@cache
def best_table(bits: int, one_in: int, most: int) -> tuple[int, ...]:
    """The table of least rounding variance among all of granularities up to `most`."""
    tables = (optimal_table(bits, granularity, one_in) for granularity in range((1 << bits) - 1, most + 1))
    return min(tables, key=lambda table: (round(table_cost(table, one_in), 12), table[-1]))


@cache
def known_tables(bits: int, one_in: int) -> tuple[tuple[int, ...], ...]:
    """The best tables for bytes that sum up any number of contributions; the native core has these."""
    bounds = {255 // world for world in range(1, 256)}
    return tuple(sorted({best_table(bits, one_in, most) for most in bounds if most >= (1 << bits) - 1}, key=max))


def table_for(bits: int, one_in: int, world: int) -> tuple[int, ...]:
    """The table for rounds of `world` contributions: summed in 8 bits if that is possible, else in 16.

    Raises ValueError if there is none.
    """
    codes = 1 << bits
    if (codes - 1) * world <= LARGEST_SUM[8]:
        return best_table(bits, one_in, LARGEST_SUM[8] // world)
    fitting = [table for table in known_tables(bits, one_in) if table[-1] * world <= LARGEST_SUM[16]]
    if not fitting:
        raise ValueError(f"sums of {world} contributions of {bits} bits don't fit into 16 bits")
    return fitting[-1]


def _grid(granularity: int, one_in: int) -> Array:
    t = CLAMPS[one_in]
    return np.array([t * (2 * i - granularity) / granularity for i in range(granularity + 1)])


def main() -> None:
    """Prints compression/quantised/thc_tables.h."""
    print("// Written by `python -m byteps_like.compression.quantised.thc_table`, which says what this is.")
    print("#pragma once\n\nnamespace byteps_like {\n")
    print("struct ThcTable {\n  int bits, clamp;\n  const char* points;\n};\n")
    print("// By bits, clamp and the last point.\ninline constexpr ThcTable kThcTables[] = {")
    for bits in (2, 3, 4):
        for one_in in CLAMPS:
            for table in known_tables(bits, one_in):
                print(f'    {{{bits}, {one_in}, "{".".join(map(str, table))}"}},')
    print("};\n")
    print("struct ThcClamp {\n  int one_in;\n  double limit;\n};\n")
    print("// P(|Z| > limit) = 1 / one_in.\ninline constexpr ThcClamp kThcClamps[] = {")
    for one_in, limit in CLAMPS.items():
        print(f"    {{{one_in}, {limit!r}}},")
    print("};\n\n}  // namespace byteps_like")


if __name__ == "__main__":
    main()
