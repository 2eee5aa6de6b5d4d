"""Many simulated control planes, or one from its beginning to its end: `byteps-like chaos --sim --control`."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from byteps_like.control.simulated.defects import DEFECTS
from byteps_like.control.simulated.job import ControlJob
from byteps_like.control.simulated.seeds import SeedRun, Simulation
from byteps_like.control.simulated.shrinking import smallest
from byteps_like.errors import InvalidArgumentError


def _run(seed: int, defect: str) -> SeedRun:
    job = ControlJob(seed, defect=_known(defect))
    return SeedRun(job.run(), job.trace, (job.views,))


CONTROL_PLANES = Simulation(
    jobs="control planes",
    figures="{} worlds",
    replay="byteps-like chaos --sim --control --seed SEED [--shrink]",
    run=_run,
)
"""Running one raises InvalidArgumentError for a defect that there isn't."""


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
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        return CONTROL_PLANES.count(seeds, defect, pool)


def list_defects() -> None:
    """Prints them."""
    print(*(f"{name}: {what}" for name, what in DEFECTS.items() if name), sep="\n")


def _known(defect: str) -> str:
    if defect not in DEFECTS:
        raise InvalidArgumentError(f"--defect {defect} is none of {', '.join(filter(None, DEFECTS))}")
    return defect
