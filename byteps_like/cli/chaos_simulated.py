"""`byteps-like chaos --sim`: simulated jobs, and whether they keep the rules."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

from byteps_like.control.simulated.seeds import SeedRun, Simulation
from byteps_like.errors import InvalidArgumentError


def simulate(seed: int | None, seeds: str, defect: str, shrink: bool, jobs: int | None, control: bool) -> bool:
    """Runs one job and prints its trace, or many and counts; whether they kept the rules. See the command's options."""
    if control:
        return _simulate_control(seed, seeds, defect, shrink, jobs or _cores())
    from byteps_like._core import Sim

    if defect == "list":
        print("\n".join(Sim.defects()))
        return True
    return _show(seed, defect, shrink) if seed is not None else _count(_range(seeds), defect, jobs or _cores())


def _simulate_control(seed: int | None, seeds: str, defect: str, shrink: bool, jobs: int) -> bool:
    from byteps_like.control.simulated import running

    if defect == "list":
        running.list_defects()
        return True
    if seed is not None:
        return running.show(seed, defect, shrink)
    return running.count(_range(seeds), defect, jobs)


def _show(seed: int, defect: str, shrink: bool) -> bool:
    """Prints one job from beginning to end; whether it kept the rules."""
    from byteps_like._core import Sim

    job = Sim(seed, defect, trace=True)
    job.run()
    if shrink and job.complaints:
        job = job.shrink(defect, trace=True)
        job.run()
    print(job.plan, job.heading, *job.lines(), sep="\n")
    for complaint in job.complaints:
        print(f"BROKEN: {complaint}")
    print(
        f"seed {seed}: {job.finished} workers ended well, {job.failed} with an error, {job.killed} were killed;"
        f" {job.events} events in {job.seconds:.3f} s of simulated time, history {job.history:016x}"
    )
    return not job.complaints


def _count(seeds: range, defect: str, threads: int) -> bool:
    """Runs all of them and prints those that break a rule; whether there is none."""
    jobs = Simulation(
        jobs="jobs",
        figures="{} events, {:.0f} s of simulated time",
        replay="byteps-like chaos --sim --seed SEED",
        run=_run,
    )
    with ThreadPoolExecutor(threads) as pool:
        return jobs.count(seeds, defect, pool)


def _run(seed: int, defect: str) -> SeedRun:
    from byteps_like._core import Sim

    job = Sim(seed, defect)
    job.run()
    return SeedRun(list(job.complaints), job.history, (job.events, job.seconds))


def _range(text: str) -> range:
    first, colon, last = text.partition(":")
    if not colon or not first.isdecimal() or not last.isdecimal() or int(first) >= int(last):
        raise InvalidArgumentError(f"--seeds {text} is not valid; write FIRST:LAST, as in 0:500")
    return range(int(first), int(last))


def _cores() -> int:
    return len(os.sched_getaffinity(0))
