"""Turning the jobs of a circle against each other: one after the other, each to its best place, until none moves."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import numpy as np

from byteps_like.planner.shift.circle import Circle

_BEGINNINGS = 8
_ROUNDS = 20


def turn(circle: Circle, jobs: Sequence[int], gbps: float) -> dict[int, int]:
    """Slots for each of the jobs on one link. The first stays; of two the other's best place is found exactly."""
    best, least = _descend(circle, jobs, {"": (jobs, gbps)}, _greedy(circle, jobs, gbps))
    chance = random.Random(0)
    for _ in range(_BEGINNINGS if len(jobs) > 2 else 0):
        start = {job: chance.randrange(circle.slots_of[job]) for job in jobs}
        found, cost = _descend(circle, jobs, {"": (jobs, gbps)}, start)
        if cost < least:
            best, least = found, cost
    return best


def settle(
    circle: Circle, links: Mapping[str, Sequence[int]], gbps: Mapping[str, float], shifts: list[int]
) -> list[int]:
    """The same over several links that make a cycle, where each link's own best shifts may contradict each other."""
    jobs = sorted({job for on in links.values() for job in on})
    pairs = {link: (on, gbps[link]) for link, on in links.items()}
    best, least = _descend(circle, jobs, pairs, dict(enumerate(shifts)))
    chance = random.Random(0)
    for _ in range(_BEGINNINGS):
        start = dict(enumerate(shifts)) | {job: chance.randrange(circle.slots_of[job]) for job in jobs}
        found, cost = _descend(circle, jobs, pairs, start)
        if cost < least:
            best, least = found, cost
    return [best[job] for job in range(len(shifts))]


def _greedy(circle: Circle, jobs: Sequence[int], gbps: float) -> dict[int, int]:
    """The job that sends most first, each of the others where it costs least beside those before it."""
    placed: dict[int, int] = {}
    for job in sorted(jobs, key=circle.mean, reverse=True):
        others = circle.demand(placed) if placed else 0.0
        placed[job] = int(np.argmin(circle.cost(circle.turns(job) + others, gbps))) if placed else 0
    return placed


def _descend(
    circle: Circle, jobs: Sequence[int], links: Mapping[str, tuple[Sequence[int], float]], start: dict[int, int]
) -> tuple[dict[int, int], float]:
    """The shifts, and their cost summed over the links."""
    shifts = dict(start)
    for _ in range(_ROUNDS):
        before = dict(shifts)
        for job in jobs[1:]:
            cost = np.zeros(circle.slots_of[job])
            turned = circle.turns(job)
            for on, gbps in links.values():
                if job in on:
                    others = circle.demand({other: shifts[other] for other in on if other != job})
                    cost += circle.cost(turned + others, gbps)
            if cost[shifts[job]] > cost.min() + 1e-12:
                shifts[job] = int(np.argmin(cost))
        if shifts == before:
            break
    total = sum(
        float(circle.cost(circle.demand({job: shifts[job] for job in on}), gbps)) for on, gbps in links.values()
    )
    return shifts, total
