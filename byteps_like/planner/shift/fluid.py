"""What becomes of jobs on shared links: steps of computing and sending, links shared fairly, begun freely or paced."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from byteps_like.planner.shift.plan import PeriodicJob
from byteps_like.worker.pace import Pace

_EPSILON = 1e-9


@dataclass
class _Running:
    """One job in the middle of a step: `left` of the phase at hand, in seconds, or in Gb where it is sent."""

    job: PeriodicJob
    pace: Pace | None
    chance: random.Random
    jitter: float
    phases: list[tuple[float, float]] = field(default_factory=list)
    begun: list[float] = field(default_factory=list)
    left: float = 0.0
    gbps: float = 0.0

    def begin(self, now: float) -> None:
        """A step, after waiting for its slot."""
        wait = self.pace.wait(now) if self.pace is not None else 0.0
        self.begun.append(now + wait)
        self.phases = [(wait, 0.0)]
        at = 0.0
        for arc in sorted(self.job.arcs, key=lambda arc: arc.start):
            self.phases += [(self._disturbed(max(0.0, arc.start - at)), 0.0), (arc.length * arc.gbps, arc.gbps)]
            at = arc.start + arc.length
        self.phases.append((self._disturbed(max(0.0, self.job.period - at)), 0.0))
        self.advance(now)

    def advance(self, now: float) -> None:
        """Goes to the next phase that takes time; after the last one to the next step."""
        while self.phases:
            self.left, self.gbps = self.phases.pop(0)
            if self.left > _EPSILON:
                return
        self.begin(now)

    def _disturbed(self, seconds: float) -> float:
        return seconds * max(0.0, 1.0 + self.chance.gauss(0.0, self.jitter))


def step_times(
    jobs: Sequence[PeriodicJob], gbps: Mapping[str, float] | float, steps: int = 100, *,
    paces: Mapping[str, Pace] | None = None, jitter: float = 0.0, seed: int = 0,
) -> dict[str, list[float]]:  # fmt: skip
    """Seconds of each of `steps` steps of each job, waits for slots included; all begin together.

    Between arcs a job computes for as long as its circle says, times 1 plus normal noise of deviation `jitter`. Links
    are shared max-min fairly by the arcs that are being sent, none at more than its own rate, as by TCP in the mean.
    """
    running = []
    for number, job in enumerate(jobs):
        pace = None if paces is None else paces.get(job.name)
        one = _Running(job, pace, random.Random(seed * 1009 + number), jitter)
        one.begin(0.0)
        running.append(one)
    now = 0.0
    while min(len(one.begun) for one in running) <= steps:
        rates = [1.0 if one.gbps == 0.0 else 0.0 for one in running]
        sending = [number for number, one in enumerate(running) if one.gbps]
        for number, rate in _fair([running[number] for number in sending], gbps).items():
            rates[sending[number]] = rate
        span = min(one.left / rate for one, rate in zip(running, rates, strict=True))
        now += span
        for one, rate in zip(running, rates, strict=True):
            one.left -= rate * span
            if one.left <= _EPSILON:
                one.advance(now)
    return {
        one.job.name: [after - before for before, after in itertools.pairwise(one.begun)][:steps] for one in running
    }


def _fair(sending: Sequence[_Running], gbps: Mapping[str, float] | float) -> dict[int, float]:
    """Max-min fair rates by progressive filling: all grow alike until a link is full or a job has its own rate."""
    rates = dict.fromkeys(range(len(sending)), 0.0)
    growing = set(rates)
    room = {
        link: float(gbps) if isinstance(gbps, int | float) else gbps[link] for one in sending for link in one.job.links
    }
    while growing:
        on = {link: [number for number in growing if link in sending[number].job.links] for link in room}
        grow = min(room[link] / len(users) for link, users in on.items() if users)
        grow = min(grow, *(sending[number].gbps - rates[number] for number in growing))
        for number in growing:
            rates[number] += grow
        for link, users in on.items():
            room[link] -= grow * len(users)
        full = {number for link, users in on.items() if room[link] <= _EPSILON for number in users}
        growing -= full | {number for number in growing if sending[number].gbps - rates[number] <= _EPSILON}
    return rates
