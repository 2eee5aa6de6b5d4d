"""`byteps-like plan shift`: shifts in time the steps of jobs that share links."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from byteps_like.errors import InvalidArgumentError
from byteps_like.worker.pace import APART, SLACK, Pace

if TYPE_CHECKING:  # NumPy takes its time, and help needs none
    from byteps_like.planner.shift.plan import PeriodicJob, ShiftPlan

_STEPS = 60


def shift(
    jobs: Annotated[
        list[str],
        typer.Argument(
            metavar="JOB...",
            help="NAME=PERIOD:START:LENGTH:GBPS,START:LENGTH:GBPS@LINK+LINK; NAME=, further intervals and @LINK are"
            " optional. Or a trace: NAME=FILE.json@LINK.",
        ),
    ],
    gbps: Annotated[float, typer.Option(help="Capacity in Gb/s of links that --link does not name.")] = 10.0,
    link: Annotated[
        list[str] | None, typer.Option(metavar="NAME=GBPS", help="Capacity of one link in Gb/s; repeatable.")
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option(
            min=0.0, max=0.2, help="Relative deviation allowed between periods and parts of a common multiple."
        ),
    ] = APART,
    slack: Annotated[
        float,
        typer.Option(
            min=0.0, max=0.5, help="Fraction by which step slots are longer than needed, to catch up after delays."
        ),
    ] = SLACK,
    draw: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the load before and after, as .png or .svg.")
    ] = None,
) -> None:
    """Finds time shifts for jobs that share links, so that one sends while the others compute.

    A job is given by the period of its steps in seconds, and by the start, length and rate of its transfers within a
    step. For example, two jobs that compute for one second and then communicate for one second:

        byteps-like plan shift 2:1:1:10 2:1:1:10 --gbps 10

    A job can also be given by a trace that BYTEPS_LIKE_TRACE has recorded. Run each job with the settings of its row:
    BYTEPS_LIKE_STEP_PERIOD and BYTEPS_LIKE_START_OFFSET.
    """
    from byteps_like.planner.shift.jobs import parse_job
    from byteps_like.planner.shift.plan import plan_shifts

    found = [parse_job(text, number) for number, text in enumerate(jobs)]
    capacity = _capacities(found, link or [], gbps)
    plan = plan_shifts(found, capacity, tolerance=tolerance, slack=slack)
    console = Console()
    console.print(_job_table(plan, capacity))
    console.print(_link_table(plan))
    if draw is not None:
        from byteps_like.planner.shift.draw import draw as draw_plan

        draw_plan(plan, draw)
        console.print(f"drawn in {draw}")


def _capacities(jobs: list[PeriodicJob], given: list[str], gbps: float) -> dict[str, float]:
    names = dict.fromkeys(name for job in jobs for name in job.links)
    capacity = dict.fromkeys(names, gbps)
    for text in given:
        name, _, rate = text.partition("=")
        try:
            capacity[name] = float(rate)
        except ValueError:
            raise InvalidArgumentError(f"--link {text} is not valid; write NAME=GBPS") from None
        if name not in names:
            raise InvalidArgumentError(f"--link {text}: no job is on link {name!r}; links: {', '.join(names)}")
    return capacity


def _job_table(plan: ShiftPlan, capacity: dict[str, float]) -> Table:
    """Steps are those of a fluid model of links shared fairly, started together and paced."""
    from byteps_like.planner.shift.fluid import step_times

    free = step_times(plan.jobs, capacity, _STEPS)
    paces = {name: Pace(shift, plan.periods[name]) for name, shift in plan.shifts.items()}
    paced = step_times(plan.jobs, capacity, _STEPS, paces=paces)
    table = Table(box=None)
    for heading in ("job", "period", "step together", "step shifted", "faster", "step_period", "start_offset"):
        table.add_column(heading, justify="left" if heading == "job" else "right")
    for job in plan.jobs:
        before, after = (sum(times[job.name]) / len(times[job.name]) for times in (free, paced))
        settings = (f"{plan.periods[job.name]:.4f}", f"{plan.shifts[job.name]:.4f}")
        measured = (f"{before:.3f} s", f"{after:.3f} s", f"{before / after:.2f}x")
        table.add_row(job.name, f"{job.period:.3f} s", *measured, *settings)
    return table


def _link_table(plan: ShiftPlan) -> Table:
    table = Table(box=None)
    for heading in ("link", "capacity", "circle", "peak together", "peak shifted", "score together", "score shifted"):
        table.add_column(heading, justify="left" if heading == "link" else "right")
    table.add_column("jobs")
    for link in plan.links:
        table.add_row(
            link.name, f"{link.gbps:g} Gb/s", f"{link.circle:.3f} s", f"{link.peak_before:.3g}", f"{link.peak:.3g}",
            f"{link.score_before:.2f}", f"{link.score:.2f}", ", ".join(link.jobs),
        )  # fmt: skip
    return table
