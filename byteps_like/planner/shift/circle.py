"""Jobs' demand around one circle of time, cut into slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Demand = NDArray[np.float64]
_SLOTS = 240
_MOST_SLOTS = 2880

Arcs = Sequence[tuple[float, float, float]]
"""(start, length, gbps) each."""


class Circle:
    """A circle of `length` seconds; each of `jobs`, (period, arcs), turns on it a whole number of times.

    The shortest period has 240 slots, unless the circle then had more than 2880. Demands are in Gb/s, in mean over
    each slot.
    """

    def __init__(self, length: float, jobs: Sequence[tuple[float, Arcs]]) -> None:
        self.length = length
        shortest = min(period for period, _ in jobs)
        self.slots = min(_MOST_SLOTS, _SLOTS * round(length / shortest))
        self.slot = length / self.slots
        self.slots_of = [max(1, int(np.ceil(self.slots * period / length - 1e-9))) for period, _ in jobs]
        """How many slots a job can be turned by, before it is where it was."""
        self._demands = [self._rasterized(period, arcs) for period, arcs in jobs]
        self._spread = max(1, self.slots_of[int(np.argmin([period for period, _ in jobs]))] // 20)

    def _rasterized(self, period: float, arcs: Arcs) -> Demand:
        """By differences of the sent amount at the slots' edges, so that nothing is lost between them."""
        edges = np.arange(self.slots + 1) * self.slot
        sent = np.zeros(self.slots + 1)
        for start, length, gbps in arcs:
            for turn in range(-1, round(self.length / period)):
                begin = start + turn * period
                sent += gbps * np.clip(edges - begin, 0.0, length)
        return np.asarray(np.diff(sent) / self.slot)

    def demand(self, shifts: Mapping[int, int]) -> Demand:
        """Of these jobs together, each turned by so many slots."""
        return np.asarray(sum(np.roll(self._demands[job], slots) for job, slots in shifts.items()))

    def turns(self, job: int) -> Demand:
        """The job's demand turned by 0, 1, 2, ... slots: one in each row."""
        count = self.slots_of[job]
        places = (np.arange(self.slots)[None, :] - np.arange(count)[:, None]) % self.slots
        return np.asarray(self._demands[job][places])

    def mean(self, job: int) -> float:
        """What it sends in mean, in Gb/s."""
        return float(self._demands[job].mean())

    @staticmethod
    def score(demand: Demand, gbps: float) -> float:
        """1 less the demand over capacity, in mean, to capacity. 1: it all fits."""
        return 1.0 - float(np.maximum(demand - gbps, 0.0).mean()) / gbps

    def cost(self, demand: Demand, gbps: float) -> NDArray[np.float64]:
        """Of each row: what is over capacity; and, counting little, how closely arcs follow each other."""
        over = np.maximum(demand - gbps, 0.0).mean(axis=-1) / gbps
        ahead = np.cumsum(np.concatenate([demand, demand[..., : self._spread]], axis=-1), axis=-1)
        smooth = (ahead[..., self._spread :] - ahead[..., : -self._spread]) / self._spread
        return np.asarray(over + 1e-3 * ((smooth / gbps) ** 2).mean(axis=-1))
