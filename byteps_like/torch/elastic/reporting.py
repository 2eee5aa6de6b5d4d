"""`report`: in which worlds the newest steps were made, and without whom servers have finished them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from byteps_like.errors import NotInitializedError
from byteps_like.torch.job import runtime as _runtime
from byteps_like.torch.job.after_steps import after_steps
from byteps_like.torch.job.runtime import Runtime
from byteps_like.worker.engine.step_log import KEPT, Lack


@dataclass(frozen=True)
class StepReport:
    """One step of this process: what lies between two returns of a distributed optimizer's `step()`."""

    number: int
    """From 0 in each world: the same on all ranks."""
    world: int
    """Number of the world that it was made in; later ones have larger numbers."""
    size: int
    """Of that world, with those who have died in it."""
    rank: int
    """Of this process in it."""
    lacks: tuple[Lack, ...] = ()
    """Who is missing in which bytes of which results; empty if all are in all of them. By rank, then tensor."""

    @property
    def contributors(self) -> tuple[int, ...]:
        """The ranks that are in all results, with all that they have brought."""
        missing = {lack.rank for lack in self.lacks}
        return tuple(rank for rank in range(self.size) if rank not in missing)

    def __str__(self) -> str:
        told = "; ".join(map(str, self.lacks)) or "all ranks are in it"
        return f"step {self.number} of world {self.world} (rank {self.rank} of {self.size}): {told}"


@dataclass(frozen=True)
class Report:
    """What `report` returns."""

    world: int
    """Number of the world that this process is in."""
    size: int
    rank: int
    steps: tuple[StepReport, ...]
    """The newest steps that have ended, in this world and those that `run` has left: at most 64, the newest last."""
    under_way: StepReport
    """The one that has not: what was reduced since."""

    def __str__(self) -> str:
        lines = [f"world {self.world}: rank {self.rank} of {self.size}"]
        return "\n".join([*lines, *(str(step) for step in [*self.steps, self.under_way] if step.lacks)])


class _Past:
    """The newest steps of worlds before a runtime's."""

    def __init__(self) -> None:
        self.steps: tuple[StepReport, ...] = ()


def report() -> Report:
    """In which worlds this process has made its newest steps, and what their results lack. Never blocks.

    In an elastic job servers finish a step without ranks that die in it, or have died since its world began. Which
    bytes of them count is the same on all ranks, and so are the reports of ranks that have made the same steps. The
    step that has just ended is `report().steps[-1]`. Where nothing waits for results before `step()` returns
    (`cross_barrier`, streams of a GPU), those of a step are known when the next one has ended.

    Of a process that has yet to join it has no steps, and the world is 0. Raises NotInitializedError.
    """
    standing = _runtime.standing()
    if _runtime.has_yet_to_join():
        return Report(0, standing.size, standing.rank, (), StepReport(0, 0, standing.size, standing.rank))
    runtime = _runtime.installed()
    log = runtime.steps
    return Report(log.world, standing.size, standing.rank, newest_steps(), _step(runtime, log.now))


def newest_steps() -> tuple[StepReport, ...]:
    """Those of this process that have ended. Raises NotInitializedError."""
    runtime = _runtime.current()
    now = runtime.steps.now
    own = [_step(runtime, number) for number in range(max(now - KEPT, 0), now)]
    return (*runtime.of(_Past).steps, *own)[-KEPT:]


def remember(steps: Sequence[StepReport]) -> None:
    """These have been made by this process, in worlds before the one that it is in now."""
    _runtime.current().of(_Past).steps = tuple(steps)


def _step(runtime: Runtime, number: int) -> StepReport:
    log, standing = runtime.steps, runtime.worker.standing
    return StepReport(number, log.world, standing.size, standing.rank, log.lacks(number))


def _end_step(_: torch.optim.Optimizer) -> None:
    with suppress(NotInitializedError):
        _runtime.installed().steps.end_step()


after_steps(_end_step)
