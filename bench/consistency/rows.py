"""The figures that are shown, each with the ways that it compares and its target."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from bench.consistency import turns
from bench.consistency.turns import Figure, Turn
from bench.consistency.ways import DSSP, EVERY, FACTOR, FEDSA, FIXED, LGC, SOFTSYNC

Ways = Mapping[str, Turn]
"""One turn of each."""


@dataclass(frozen=True)
class Target:
    """From the least to the most that is accepted."""

    least: float = -math.inf
    most: float = math.inf

    def met(self, value: float) -> bool:
        """Whether that is accepted, as it is shown."""
        return self.least <= round(value, 4) <= self.most

    def __str__(self) -> str:
        if self.least == -math.inf:
            return "" if self.most == math.inf else f"<= {self.most:g}"
        return f">= {self.least:g}" if self.most == math.inf else f"{self.least:g} to {self.most:g}"


def around(value: float, part: float) -> Target:
    """That value, more or less a part of it."""
    return Target(value * (1 - part), value * (1 + part))


@dataclass(frozen=True)
class Row:
    """A figure of a turn of some ways of a job. `simulated`: the policies say what it ought to be."""

    case: str
    what: str
    job: str
    ways: tuple[str, ...]
    value: Callable[[Ways], float]
    target: Target
    simulated: bool = True


def compared(figure: Figure, way: str, base: str, base_figure: Figure | None = None) -> Callable[[Ways], float]:
    """A figure of one way in units of another's."""
    return lambda ways: figure(ways[way]) / (base_figure or figure)(ways[base])


def ratio(
    case: str, what: str, job: str, ways: tuple[str, str], figure: Figure, target: Target, *, simulated: bool = True
) -> Row:  # fmt: skip
    """The row of a figure of the first way in units of the second's."""
    return Row(case, what, job, ways, compared(figure, *ways), target, simulated)


def _wait_beside_fixed(ways: Ways) -> float:
    """DSSP's wait in units of the shortest of all fixed bounds; what travelling takes is no wait."""
    travelling = turns.wait(ways["asp"])
    return (turns.wait(ways[DSSP]) - travelling) / min(turns.wait(ways[fixed]) - travelling for fixed in FIXED)


def _beside_slow(fixed: str) -> Row:
    value = compared(turns.steady_fast_rate, fixed, "asp", turns.slow_rate)
    what = f"S1: {fixed}: steps/s of fast ranks, of the slow rank's"
    return Row("ssp", what, "S1", (fixed, "asp"), value, Target(most=1.02))


def _ssp() -> list[Row]:
    own = "steps/s, of those without waits"
    return [
        ratio("ssp", f"S2: s=8: {own}", "S2", ("ssp:s=8", "asp"), turns.step_rate, Target(0.9)),
        ratio("ssp", f"S2: s=3: {own}", "S2", ("ssp:s=3", "asp"), turns.step_rate, Target()),
        ratio("ssp", f"S2: s=1: {own}", "S2", ("ssp:s=1", "asp"), turns.step_rate, Target()),
        ratio("ssp", f"S2: bsp: {own}", "S2", ("bsp", "asp"), turns.step_rate, Target()),
        ratio("ssp", "S2: s=3, 8 ranks: steps/s, of bsp's", "eight", ("ssp:s=3", "bsp"), turns.step_rate, Target(1.5)),
        *map(_beside_slow, FIXED),
    ]


def _dssp() -> list[Row]:
    ways = ("asp", DSSP, *FIXED)
    what = "wait, of the best fixed s"
    return [Row("dssp", f"{job}: {what}", job, ways, _wait_beside_fixed, Target(most=1.05)) for job in ("S1", "S2")]


def _partial() -> list[Row]:
    rate, fast = turns.version_rate, ", of those of the fast ranks alone"
    return [
        ratio("backup", "S2: b=1, 8 ranks: versions/s, of bsp's", "eight", ("backup:b=1", "bsp"), rate, Target(1.3)),
        ratio("backup", "S2: b=2, 8 ranks: versions/s, of bsp's", "eight", ("backup:b=2", "bsp"), rate, Target(1.7)),
        ratio("coding", "stalls: coded, s=1: versions/s, of bsp's", "stalls", ("coded", "bsp"), rate, Target(1.5)),
        ratio("fedsa", f"S1: k=3: versions/s{fast}", "S1", (FEDSA, "fast ranks"), rate, Target(0.9)),
    ]


def _blocks() -> list[Row]:
    """What the slow rank sends in a step, of what fast ones do; and the price of waiting for its blocks."""
    rate = turns.version_rate
    slow = compared(lambda turn: turns.bytes_per_step(turn[turns.FAST.stop :]), LGC, LGC,
                    lambda turn: turns.bytes_per_step(turn[turns.FAST]))  # fmt: skip
    own = "S1: blocks: versions/s, of those of the fast ranks alone"
    return [
        Row("lgc", "S1: blocks: bytes of a slow step, of a fast one's", "S1", (LGC,), slow, Target(most=2), False),
        ratio("lgc", own, "S1", (LGC, "fast ranks"), rate, Target(), simulated=False),
        ratio("lgc", "S2: blocks: versions/s, of bsp's", "S2", (LGC, "bsp"), rate, Target(), simulated=False),
    ]


def _age(way: str, k: int) -> Row:
    value = lambda ways: turns.mean_age(ways[way])  # noqa: E731 - as the others
    return Row("age", f"S2: {way}: mean age in versions", "S2", (way,), value, around(3 / k, 0.02))


def _asynchronous() -> list[Row]:
    by_workers = ("asp, by workers", "asp, by workers, fast ranks")
    what = "S1: asp, by workers: steps/s of fast ranks, of those alone"
    bytes_ways = ("every 4 steps", "every step")
    return [
        _age("asp", 1),
        _age(SOFTSYNC, 2),
        ratio("async", what, "S1", by_workers, turns.fast_rate, Target(0.9)),
        ratio("distbelief", "every 4 steps: bytes both ways, of every step's", "calm", bytes_ways,
              turns.bytes_both_ways, around(0.25, 0.01), simulated=False),
        ratio("distbelief", "portions, a rank 10 times slower: passes/s, of the others alone", "portions",
              ("portions", "portions, fast ranks"), turns.fast_rate, Target(1 / 1.2), simulated=False),
    ]  # fmt: skip


def _adam() -> list[Row]:
    ways, what = ("factors", "matrix"), "Adam: factors of a square matrix, K = M/16: bytes"
    return [
        ratio("adam", f"{what} up, of the matrix's", "calm", ways, turns.bytes_per_step, around(2 * FACTOR, 0.01),
              simulated=False),
        ratio("adam", f"{what} down, of the matrix's", "calm", ways, turns.bytes_down, around(1, 0.01),
              simulated=False),
    ]  # fmt: skip


def _low_comm() -> list[Row]:
    burst = partial(turns.burst, steps=3)
    rows: list[tuple[str, tuple[str, str], Figure, Target]] = [
        ("DiLoCo: bytes per step, of bsp's", ("DiLoCo", "bsp"), turns.bytes_per_step, around(1 / EVERY, 0.01)),
        ("4 fragments: bytes per step, of bsp's", ("streaming", "bsp"), turns.bytes_per_step, around(1 / EVERY, 0.01)),
        ("4 fragments: burst, of DiLoCo's", ("streaming", "DiLoCo"), burst, around(0.25, 0.02)),
        ("DiLoCo: time of a step, of one alone", ("DiLoCo", "alone"), turns.step_time, Target(most=1.05)),
        ("4 fragments: time of a step, of one alone", ("streaming", "alone"), turns.step_time, Target(most=1.05)),
        ("bsp: time of a step, of one alone", ("bsp", "alone"), turns.step_time, Target()),
    ]
    what, ways = "S1: quorum=0.75: steps/s of fast ranks, of those alone", ("quorum", "quorum, fast ranks")
    decoupled = ("decoupled", "decoupled, fast ranks")
    return [
        *(ratio("low_comm", one[0], "calm", *one[1:], simulated=False) for one in rows),
        ratio("low_comm", what, "S1", ways, turns.fast_rate, Target(0.95)),
        ratio(
            "decoupled",
            what.replace("0.75", "0.75, grace=auto"),
            "S1",
            decoupled,
            turns.fast_rate,
            Target(0.95),
            simulated=False,
        ),
    ]


ROWS = [*_ssp(), *_dssp(), *_partial(), *_blocks(), *_asynchronous(), *_adam(), *_low_comm()]
