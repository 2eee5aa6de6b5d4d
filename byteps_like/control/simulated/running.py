"""Many simulated control planes, or one from its beginning to its end: `byteps-like chaos --sim --control`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

from byteps_like.control.simulated.defects import DEFECTS
from byteps_like.control.simulated.job import ControlJob
from byteps_like.control.simulated.shrinking import smallest
from byteps_like.errors import InvalidArgumentError

_TWICE = 100
"""Of so many seeds one runs twice: both traces must be the same."""
_AT_A_TIME = 25


@dataclass(frozen=True)
class Judged:
    """One seed."""

    seed: int
    complaints: list[str]
    views: int


def judge(seed: int, defect: str = "") -> Judged:
    """Runs it. Raises InvalidArgumentError for a defect that there isn't."""
    job = ControlJob(seed, defect=_known(defect))
    complaints = job.run()
    if seed % _TWICE == 0:
        again = ControlJob(seed, defect=defect)
        again.run()
        if again.trace != job.trace:
            complaints.append("it has another history each time")
    return Judged(seed, complaints, job.views)


def show(seed: int, defect: str, shrink: bool) -> bool:
    """Prints one from beginning to end, or the smallest that breaks a rule as well; whether it kept the rules."""
    job = ControlJob(seed, defect=_known(defect))
    if job.run() and shrink:
        job = ControlJob(seed, smallest(seed, job.plan, defect), defect)
        job.run()
    print(job.plan, *job.trace, sep="\n")
    for complaint in job.complaints:
        print(f"BROKEN: {complaint}")
    print(f"seed {seed}: {job.views} worlds under {job.schedulers} schedulers")
    return not job.complaints


def count(seeds: range, defect: str, processes: int) -> bool:
    """Runs all of them and prints those that break a rule; whether there is none."""
    _known(defect)
    began, views, broken = time.monotonic(), 0, 0
    for one in _all(seeds, defect, processes):
        views += one.views
        broken += bool(one.complaints)
        for complaint in one.complaints[:1]:
            print(f"seed {one.seed}: {complaint}", flush=True)
    print(f"{len(seeds)} control planes, {broken} broken: {views} worlds in {time.monotonic() - began:.1f} s")
    if broken:
        print(
            "replay one: byteps-like chaos --sim --control --seed SEED [--shrink]"
            + (f" --defect {defect}" if defect else "")
        )
    return not broken


def list_defects() -> None:
    """Prints them."""
    print(*(f"{name}: {what}" for name, what in DEFECTS.items() if name), sep="\n")


def _all(seeds: range, defect: str, processes: int) -> Iterator[Judged]:
    """In the order of the seeds."""
    parts = [(seeds[first : first + _AT_A_TIME], defect) for first in range(0, len(seeds), _AT_A_TIME)]
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        for judged in pool.map(_part, parts):
            yield from judged


def _part(what: tuple[range, str]) -> list[Judged]:
    seeds, defect = what
    return [judge(seed, defect) for seed in seeds]


def _known(defect: str) -> str:
    if defect not in DEFECTS:
        raise InvalidArgumentError(f"--defect {defect} is none of {', '.join(filter(None, DEFECTS))}")
    return defect
