"""Draws what jobs do to their links, before and after they are shifted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from byteps_like.errors import InvalidArgumentError
from byteps_like.planner.shift.plan import LinkPlan, PeriodicJob, ShiftPlan

_COLOURS = ("#3b6ea5", "#d98032", "#4f9d69", "#a8528a", "#c4b23f", "#6d6d6d", "#7fb7be", "#b5534c")


def draw(plan: ShiftPlan, path: Path) -> None:
    """Writes PNG, SVG or whatever the ending of `path` says: a row per link, before and after, arcs stacked over time.

    Raises InvalidArgumentError if there is no matplotlib, or it knows no such format.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError as error:
        raise InvalidArgumentError("drawing needs matplotlib: pip install matplotlib") from error
    rows = max(1, len(plan.links))
    figure = Figure(figsize=(9.0, 0.9 + 2.1 * rows), layout="constrained")
    axes = figure.subplots(rows, 2, squeeze=False, sharey="row", sharex="row")
    colours = {job.name: _COLOURS[number % len(_COLOURS)] for number, job in enumerate(plan.jobs)}
    for (left, right), link in zip(axes, plan.links, strict=False):
        _stack(left, plan, link, dict.fromkeys(link.jobs, 0.0), colours)
        _stack(right, plan, link, plan.shifts, colours)
        left.set_ylabel(f"{link.name}\nGb/s")
        left.set_title(f"together, not shifted: score {link.score_before:.2f}", fontsize=10)
        right.set_title(f"shifted: score {link.score:.2f}", fontsize=10)
    for axis in axes[-1]:
        axis.set_xlabel("seconds")
    handles = [
        Patch(color=colours[job.name], label=f"{job.name}: begins {plan.shifts[job.name]:.3g} s later")
        for job in plan.jobs
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(handles)), frameon=False, fontsize=9)
    try:
        figure.savefig(path, dpi=110)
    except ValueError as error:
        raise InvalidArgumentError(f"can't draw {path}: {error}") from error


def _stack(axis: Any, plan: ShiftPlan, link: LinkPlan, shifts: Mapping[str, float], colours: Mapping[str, str]) -> None:
    """The jobs' demand on one link around its circle, one on the other."""
    jobs = [job for job in plan.jobs if job.name in link.jobs]
    steps = 1200
    times = [link.circle * (step + 0.5) / steps for step in range(steps)]
    demands = [[_rate(job, plan.periods[job.name], time - shifts[job.name]) for time in times] for job in jobs]
    axis.stackplot(times, *demands, colors=[colours[job.name] for job in jobs], alpha=0.85, linewidth=0)
    axis.axhline(link.gbps, color="#1f2430", linewidth=1.0, linestyle="--")
    axis.set_xlim(0.0, link.circle)
    axis.spines[["top", "right"]].set_visible(False)


def _rate(job: PeriodicJob, period: float, time: float) -> float:
    return sum(arc.gbps for arc in job.arcs if (time - arc.start) % period < arc.length)
