"""Whole numbers in proportion to speeds: by largest remainders, with a least number for each.

Equal inputs give equal results on all hosts: `fsum` rounds the exact sum, whatever a host's vector instructions are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Shares = tuple[int, ...]


def apportion(units: int, speeds: Sequence[float], least: int = 1) -> Shares:
    """Deals `units` out by `speeds`, at least `least` to each; needs units >= least * len(speeds), speeds >= 0.

    They add up to `units`, and who is faster doesn't get less. Where everybody has enough, each gets its exact quota,
    rounded up for the largest remainders and down for the others; of equal ones the lower rank comes first. The largest
    remainder method is Hamilton's (Balinski and Young, "Fair Representation", 1982).
    """
    rest = _above_least(units, speeds, least)
    left = units - least * (len(speeds) - len(rest))
    quotas = _quotas(left, [speeds[rank] for rank in rest])
    shares = [least] * len(speeds)
    for rank, quota in zip(rest, quotas, strict=True):
        shares[rank] = math.floor(quota)
    ahead = sorted((math.floor(quota) - quota, -speeds[rank], rank) for rank, quota in zip(rest, quotas, strict=True))
    for _, _, rank in ahead[: units - sum(shares)]:
        shares[rank] += 1
    return tuple(shares)


def better(current: Shares, wanted: Shares, speeds: Sequence[float], least_gain: float) -> Shares:
    """`wanted`, if it shortens steps by `least_gain` of their time; else `current`, so that noise changes nothing."""
    return wanted if seconds(wanted, speeds) < (1 - least_gain) * seconds(current, speeds) else current


def seconds(shares: Shares, speeds: Sequence[float]) -> float:
    """What the slowest rank takes at these speeds, leaving out those of which none is known (0)."""
    return max((share / speed for share, speed in zip(shares, speeds, strict=True) if speed > 0), default=0.0)


def _above_least(units: int, speeds: Sequence[float], least: int) -> list[int]:
    """The ranks whose quota is at least `least`, after the others have got that much; all, if it is that for all."""
    rest, left = list(range(len(speeds))), units
    while True:
        quotas = _quotas(left, [speeds[rank] for rank in rest])
        kept = [rank for rank, quota in zip(rest, quotas, strict=True) if quota >= least]
        if len(kept) in (0, len(rest)):
            return rest
        left -= least * (len(rest) - len(kept))
        rest = kept


def _quotas(units: int, speeds: Sequence[float]) -> list[float]:
    total = math.fsum(speeds)
    return [units * (speed / total) if total > 0 else units / len(speeds) for speed in speeds]
