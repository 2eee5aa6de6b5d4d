"""StepPacer: steps begin in slots, so that this job's traffic falls between that of other jobs on the same links."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from byteps_like.collectives.api import CallOptions, Group, Traffic
from byteps_like.config import Config
from byteps_like.dtypes import DType
from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.job import runtime as _runtime
from byteps_like.torch.job.after_steps import after_steps
from byteps_like.worker.pace import TOLERANCE, Pace


class StepPacer:
    """Begins each step when the epoch's time is `offset` modulo `period`, in seconds; see worker.pace.Pace for drift.

    Call `step()` once after each step. DistributedOptimizer does it by itself where the settings `step_period` and
    `start_offset` say so (`byteps-like plan shift` computes them). Rank 0's clock decides for all ranks of the job:
    the others wait for its go-ahead, one small message of the control class per step. Hosts of different jobs should
    keep their clocks together to about 1 % of the period, as NTP does.

    Raises InvalidArgumentError unless 0 <= offset and 0 < period.
    """

    def __init__(self, offset: float, period: float, tolerance: float = TOLERANCE) -> None:
        if not (offset >= 0 and period > 0):
            raise InvalidArgumentError(f"StepPacer: offset={offset} must be 0 or more, period={period} more than 0")
        self._pace = Pace(offset, period, tolerance)
        self._runtime: Any = None
        self._name = ""

    @property
    def period(self) -> float:
        """The period in use: longer than the one asked for, if steps turned out to be."""
        return self._pace.period

    @property
    def skipped(self) -> int:
        """Slots that were let pass by steps that came too late; known to rank 0."""
        return self._pace.skipped

    def step(self) -> None:
        """A step has ended: blocks until the next may begin. Raises the job's error."""
        group = self._others()
        if group is None or group.rank == 0:
            time.sleep(self._pace.wait(time.time()))
        if group is not None:
            word = torch.zeros(1, dtype=torch.uint8, device="cpu")
            options = CallOptions(traffic=Traffic.CONTROL)
            group.broadcast(word.data_ptr(), 1, DType.UINT8, 0, options).wait()

    def _others(self) -> Group | None:
        now = _runtime.if_installed()
        if now is None:
            return None
        if self._runtime is not now:
            self._runtime, self._name = now, f"pace.{now.count('pace')}"
        return now.worker.group(self._name) if now.worker.size > 1 else None


class PacedSteps:
    """Has a StepPacer called after each step of the first DistributedOptimizer that steps in `runtime`."""

    def __init__(self, runtime: Any, config: Config) -> None:
        self.pacer = StepPacer(config.start_offset, config.step_period)
        self._runtime = weakref.ref(runtime)
        self._optimizer: Callable[[], torch.optim.Optimizer | None] = lambda: None
        self._handle: RemovableHandle = after_steps(self._stepped)

    def close(self) -> None:
        """Steps begin when they can again."""
        self._handle.remove()

    def _stepped(self, optimizer: torch.optim.Optimizer) -> None:
        runtime = _runtime.if_installed()
        if runtime is None or runtime is not self._runtime():
            return
        if self._optimizer() is None:
            self._optimizer = weakref.ref(optimizer)
        if self._optimizer() is optimizer:
            self.pacer.step()


def pace(runtime: _runtime.Runtime) -> None:
    """Has steps begin in slots, if the settings say so."""
    if runtime.config.step_period > 0.0:
        runtime.closing.callback(PacedSteps(runtime, runtime.config).close)
