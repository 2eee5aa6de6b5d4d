"""Runs a job, here or on a lab, disturbs it, and reports."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from byteps_like.launch.chaos.disturber import ChaosPlan, Disturber
from byteps_like.launch.chaos.report import Bounds, ChaosReport
from byteps_like.launch.lab.hosts import Lab
from byteps_like.launch.lab.job import run_in_lab
from byteps_like.launch.options import RunOptions
from byteps_like.launch.run import run_job

SOAK = (sys.executable, "-m", "byteps_like.launch.chaos.soak")
"""The job that is disturbed if no other is named."""


@dataclass(frozen=True)
class ChaosOptions:
    """A job, what happens to it, what it must keep to, and where it runs."""

    job: RunOptions
    plan: ChaosPlan
    bounds: Bounds = field(default_factory=Bounds)
    lab_rate: str = ""
    """Of the links of a lab with a host for each worker and server; empty: all run on this host."""
    json: Path | None = None
    """Where the report is written as well."""


def run_chaos(options: ChaosOptions) -> int:
    """Runs the job to its end, or for as long as planned, and prints what became of it. Blocks; main thread.

    Returns 0 if it has stood the test. Raises SystemCallError if there can be no lab.
    """
    disturber = Disturber(options.plan, _say)
    job = replace(options.job, attendant=disturber, most_deaths=0)
    code = _run(job, options.lab_rate)
    report = ChaosReport.of(disturber, code, time.monotonic())
    if options.json is not None:
        options.json.write_text(json.dumps(report.as_json(), indent=1))
    broken = report.broken(options.bounds)
    _print([*report.lines(), *(f"BROKEN: {text}" for text in broken)])
    return 1 if broken else 0


def _run(job: RunOptions, rate: str) -> int:
    if not rate:
        return run_job(job)
    with Lab(job.workers + job.servers, rate=rate) as lab:
        return run_in_lab(lab, job)


def _say(text: str) -> None:
    _print([text])


def _print(lines: Sequence[str]) -> None:
    for line in lines:
        print(f"chaos: {line}", flush=True)
