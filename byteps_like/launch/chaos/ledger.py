"""Which steps a job has made when, as its workers print them. Pure.

A step counts when any worker has printed its number, and nobody a number as high before: then it is there to stay for
all that the outside can see. What a process prints a second time it has made a second time.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True)
class Gap:
    """A time without a new step, in seconds; `end` is when the next one came."""

    seconds: float
    end: float


class StepLedger:
    """Not thread-safe. Times are any monotonic seconds."""

    def __init__(self) -> None:
        self._at, self._number = array("d"), array("q")
        self._newest: dict[int, int] = {}
        self._again: dict[int, Counter[int]] = {}
        self.longest = Gap(0.0, 0.0)

    def printed(self, process: int, number: int, now: float) -> Gap | None:
        """A process has printed that it has made this step. Returns the gap that this ends, if the step is new."""
        if number <= self._newest.get(process, -1):
            self._again.setdefault(number, Counter())[process] += 1
        self._newest[process] = max(number, self._newest.get(process, -1))
        if self._number and number <= self._number[-1]:
            return None
        gap = Gap(now - self._at[-1] if self._at else 0.0, now)
        self._at.append(now)
        self._number.append(number)
        self.longest = max(self.longest, gap, key=lambda one: one.seconds)
        return gap

    def has_stepped(self, process: int) -> bool:
        """Whether this process has printed any."""
        return process in self._newest

    @property
    def began(self) -> float | None:
        """When the first step was printed."""
        return self._at[0] if self._at else None

    @property
    def newest_at(self) -> float:
        """When the newest step was printed."""
        return self._at[-1]

    @property
    def highest(self) -> int:
        """Number of the newest step; 0 without any."""
        return self._number[-1] if self._number else 0

    @property
    def made_again(self) -> int:
        """How many steps were made more than once: once for each time, however many processes made it together."""
        return sum(max(counts.values()) for counts in self._again.values())

    def close(self, now: float) -> None:
        """The job is over: the time since the newest step was a gap, too."""
        if self._at:
            self.longest = max(self.longest, Gap(now - self._at[-1], now), key=lambda one: one.seconds)

    def steps(self, begin: float, end: float) -> int:
        """How many new steps there were in this time."""
        return self._highest_at(end) - self._highest_at(begin)

    def rate(self, begin: float, end: float) -> float:
        """New steps per second in this time; 0 for none."""
        return self.steps(begin, end) / (end - begin) if end > begin else 0.0

    def _highest_at(self, when: float) -> int:
        place = bisect_right(self._at, when)
        return self._number[max(place - 1, 0)] if self._number else 0
