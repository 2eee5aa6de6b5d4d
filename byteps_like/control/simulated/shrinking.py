"""The smallest plan found that still breaks a rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from byteps_like.control.simulated.job import ControlJob
from byteps_like.control.simulated.plan import ControlPlan


def smallest(seed: int, plan: ControlPlan, defect: str) -> ControlPlan:
    """`plan` with fewer faults, workers and servers, as long as a job of it breaks a rule; which may be another rule.
    `plan` itself if it breaks none."""
    while (found := next((one for one in _smaller(plan) if ControlJob(seed, one, defect).run()), None)) is not None:
        plan = found
    return plan


def _smaller(plan: ControlPlan) -> Iterator[ControlPlan]:
    faults = plan.faults
    for at in range(len(faults)):
        yield replace(plan, faults=faults[:at] + faults[at + 1 :])
    if plan.workers > max(plan.least, 2):
        yield replace(plan, workers=plan.workers - 1)
    if plan.servers:
        yield replace(plan, servers=plan.servers - 1)
