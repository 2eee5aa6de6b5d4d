"""Many simulated jobs, one for each seed: runs them, and counts those that break a rule."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

_TWICE = 100
"""Of so many seeds one runs twice."""
_AT_A_TIME = 25
"""Seeds that a process is given at once."""


@dataclass(frozen=True)
class SeedRun:
    """What has become of a job."""

    complaints: list[str]
    history: object
    """Equal to that of another job if the same has happened in both."""
    figures: tuple[float, ...]
    """What adds up over jobs."""


@dataclass(frozen=True)
class SeedVerdict:
    """Whether the job of a seed kept the rules, and its figures."""

    complaints: list[str]
    figures: tuple[float, ...]


@dataclass(frozen=True)
class Simulation:
    """A kind of jobs."""

    jobs: str
    """What they are called."""
    figures: str
    """Format of the sums of their figures."""
    replay: str
    """Command that runs one seed."""
    run: Callable[[int, str], SeedRun]
    """Runs the job of a seed with a defect (empty: none). A function of a module: executors of processes pickle it."""

    def judge(self, seed: int, defect: str = "") -> SeedVerdict:
        """Runs the job of a seed, or of some seeds two jobs, whose histories must be the same."""
        job = self.run(seed, defect)
        complaints = list(job.complaints)
        if seed % _TWICE == 0 and self.run(seed, defect).history != job.history:
            complaints.append("it has another history each time")
        return SeedVerdict(complaints, job.figures)

    def count(self, seeds: range, defect: str, executor: Executor) -> bool:
        """Runs at least one seed, prints those that break a rule in their order, and sums up; whether there is none."""
        began, broken, figures = time.monotonic(), 0, []
        verdicts = executor.map(partial(self.judge, defect=defect), seeds, chunksize=_AT_A_TIME)
        for seed, verdict in zip(seeds, verdicts, strict=True):
            figures.append(verdict.figures)
            broken += bool(verdict.complaints)
            for complaint in verdict.complaints[:1]:
                print(f"seed {seed}: {complaint}", flush=True)
        sums, took = self.figures.format(*map(sum, zip(*figures, strict=True))), time.monotonic() - began
        print(f"{len(seeds)} {self.jobs}, {broken} broken: {sums} in {took:.1f} s")
        if broken:
            print(f"replay one: {self.replay}" + (f" --defect {defect}" if defect else ""))
        return not broken
