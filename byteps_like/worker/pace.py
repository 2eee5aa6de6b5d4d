"""When the steps of a job begin, so that its traffic falls between that of others: a grid of slots in epoch time.

After CASSINI (Rajasekaran et al., NSDI'24). Plain arithmetic: no clock, no torch.
"""

from __future__ import annotations

import logging
import math
import statistics
from collections import deque

logger = logging.getLogger(__name__)

TOLERANCE = 0.08
APART = 0.03
"""How far periods of jobs that share a link may be off a common multiple's parts, and"""
SLACK = 0.04
"""how much longer than needed steps are made, to catch up in."""
_WINDOW = 16
_SKIPS = 4
_STRETCH = 1.05


class Pace:
    """Slots at all times t with t = `offset` modulo `period`, in seconds; a step begins in each.

    A step that is early waits for its slot. One that is late by up to `tolerance` of the period begins at once, and
    makes up for it as far as the job's own steps are shorter than the period. One that is later waits for the next
    slot: a job that goes on beside its slot meets the traffic of the others in every step, which makes them late too.

    Where a quarter of the steps have to skip a slot, the period is too short for the job. Then it is stretched, with
    the offset, by 5 % as often as it takes to hold the median step; so jobs that were slowed alike stay in phase.
    """

    def __init__(self, offset: float, period: float, tolerance: float = TOLERANCE) -> None:
        self.period = period
        self.offset = offset
        self.skipped = 0
        """How many slots were let pass by steps that came too late."""
        self._tolerance = tolerance
        self._slot: float | None = None
        self._begun: float | None = None
        self._busy: deque[float] = deque(maxlen=_WINDOW)
        self._late: deque[bool] = deque(maxlen=_WINDOW)

    def wait(self, now: float) -> float:
        """Seconds from `now`, the end of a step by the epoch's clock, until the next may begin."""
        if self._begun is not None:
            self._busy.append(now - self._begun)
        slot = self._next(now)
        wait = max(0.0, slot - now)
        self._slot, self._begun = slot, now + wait
        return wait

    def _next(self, now: float) -> float:
        if self._slot is None:
            return self._after(now)
        due = self._slot + self.period
        late = now - due
        skips = late > self._tolerance * self.period
        self._late.append(skips)
        if not skips:
            return due
        self.skipped += math.ceil(late / self.period)
        if sum(self._late) >= _SKIPS:
            self._stretch()
        return self._after(now)

    def _after(self, now: float) -> float:
        return self.offset + math.ceil((now - self.offset) / self.period) * self.period

    def _stretch(self) -> None:
        median, before = statistics.median(self._busy), self.period
        while self.period < median:
            self.period, self.offset = self.period * _STRETCH, self.offset * _STRETCH
        self._late.clear()
        if self.period > before:
            logger.warning(
                "steps take %.3g s, longer than step_period=%.3g s: paced to %.3g s; plan the time shifts again",
                median, before, self.period,
            )  # fmt: skip
