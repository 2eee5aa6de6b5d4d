"""Time shifts for jobs that share links, so that one sends while the others compute.

After CASSINI (Rajasekaran et al., NSDI'24): a job is a circle as long as its iteration, with an arc for each time it
sends; jobs of different periods are laid on one circle of a common multiple; turning the circles moves the arcs apart.
Jobs that meet on several links are shifted consistently, by walking through the graph of jobs and links.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from byteps_like.errors import InvalidArgumentError
from byteps_like.planner.shift.circle import Circle
from byteps_like.planner.shift.search import settle, turn
from byteps_like.worker.pace import APART, SLACK

MOST_TURNS = 64


@dataclass(frozen=True)
class Arc:
    """From `start`, counted from the beginning of the step, the job sends at `gbps` for `length` seconds."""

    start: float
    length: float
    gbps: float


@dataclass(frozen=True)
class PeriodicJob:
    """A training job as its links see it: every `period` seconds the same arcs, on each of `links`."""

    name: str
    period: float
    arcs: tuple[Arc, ...]
    links: tuple[str, ...] = ("link",)

    def __post_init__(self) -> None:
        if not self.period > 0 or not self.links:
            raise InvalidArgumentError(
                f"job {self.name}: a period of {self.period} s must be more than 0, on some link"
            )
        for arc in self.arcs:
            if not (0 <= arc.start < self.period and 0 < arc.length <= self.period and arc.gbps > 0):
                raise InvalidArgumentError(
                    f"job {self.name}: {arc} must begin within the period of {self.period:g} s, be no longer than it,"
                    " and send something"
                )


@dataclass(frozen=True)
class LinkPlan:
    """What jobs do to one link, before and after. A score is 1 less the demand over capacity, in mean, to capacity."""

    name: str
    gbps: float
    jobs: tuple[str, ...]
    circle: float
    score_before: float
    score: float
    peak_before: float
    peak: float


@dataclass(frozen=True)
class ShiftPlan:
    """`shifts` and `periods` in seconds by job: what `start_offset` and `step_period` are to be set to."""

    jobs: tuple[PeriodicJob, ...]
    shifts: dict[str, float]
    periods: dict[str, float]
    links: tuple[LinkPlan, ...] = field(default=())

    @property
    def score(self) -> float:
        """That of the worst link; 1 where nothing overlaps beyond capacity."""
        return min((link.score for link in self.links), default=1.0)


def plan_shifts(
    jobs: Sequence[PeriodicJob], gbps: dict[str, float] | float, *, tolerance: float = APART, slack: float = SLACK
) -> ShiftPlan:
    """Shifts with the least demand over capacity on all links, and as much room as possible between the arcs.

    `gbps` is the capacity of each link, or of all. Periods are taken for commensurable if they differ from a common
    multiple's parts by `tolerance`; all are stretched to such parts, and by `slack`, which is what a late step has to
    catch up. Up to two jobs on a link that are nowhere in a cycle get the best shifts there are, at a resolution of
    1/240 of a period; more are turned one after the other from several beginnings.

    Raises InvalidArgumentError if names repeat, a link has no capacity, or periods have no common multiple within 64 of
    the longest.
    """
    names = [job.name for job in jobs]
    if len(set(names)) < len(names):
        raise InvalidArgumentError(f"jobs must have distinct names, not {', '.join(sorted(names))}")
    capacity = {
        link: gbps if isinstance(gbps, int | float) else gbps.get(link, 0.0) for job in jobs for link in job.links
    }
    for link, rate in capacity.items():
        if not rate > 0:
            raise InvalidArgumentError(f"link {link!r} has no capacity: give its rate in Gb/s")
    shifts: dict[str, float] = {}
    periods: dict[str, float] = {}
    links: list[LinkPlan] = []
    for group in _groups(jobs):
        turns, common = common_period([job.period for job in group], tolerance)
        common *= 1.0 + slack
        stretched = [replace(job, period=common / number) for job, number in zip(group, turns, strict=True)]
        circle = Circle(common, [(job.period, [(a.start, a.length, a.gbps) for a in job.arcs]) for job in stretched])
        found = _shifts(circle, stretched, capacity)
        periods |= {job.name: job.period for job in stretched}
        shifts |= {job.name: slots * circle.slot for job, slots in zip(stretched, found, strict=True)}
        links += _measured(circle, stretched, capacity, found)
    return ShiftPlan(tuple(jobs), shifts, periods, tuple(links))


def common_period(periods: Sequence[float], tolerance: float = APART) -> tuple[list[int], float]:
    """How often each job turns in the shortest common circle, and the circle's length, in which none has to hurry.

    Raises InvalidArgumentError if there is none within 64 turns of the longest period.
    """
    longest = max(periods)
    for turns in range(1, MOST_TURNS + 1):
        counts = [max(1, round(turns * longest / period)) for period in periods]
        length = max(count * period for count, period in zip(counts, periods, strict=True))
        if all(length / count <= period * (1.0 + tolerance) for count, period in zip(counts, periods, strict=True)):
            return counts, length
    shown = ", ".join(f"{period:g} s" for period in periods)
    raise InvalidArgumentError(
        f"the periods {shown} have no common multiple within {MOST_TURNS} of the longest: jobs drift through each other"
        " whatever their shifts are; raise the tolerance, or change a batch size"
    )


def _groups(jobs: Sequence[PeriodicJob]) -> list[list[PeriodicJob]]:
    """Jobs that have to do with each other by way of shared links."""
    groups: list[list[PeriodicJob]] = []
    for job in jobs:
        touching = [group for group in groups if any(set(job.links) & set(other.links) for other in group)]
        groups = [group for group in groups if group not in touching]
        groups.append([other for group in touching for other in group] + [job])
    return groups


def _shifts(circle: Circle, jobs: Sequence[PeriodicJob], capacity: dict[str, float]) -> list[int]:
    """Slots by which each job is turned: link by link along the graph, then all at once where it has cycles."""
    members = {
        link: [number for number, job in enumerate(jobs) if link in job.links]
        for link in dict.fromkeys(link for job in jobs for link in job.links)
    }
    shared = {link: on for link, on in members.items() if len(on) > 1}
    alone = {link: turn(circle, on, capacity[link]) for link, on in shared.items()}
    found: dict[int, int] = {}
    cyclic = False
    for root in range(len(jobs)):
        if root in found:
            continue
        found[root], left = 0, [root]
        seen: set[str] = set()
        while left:
            job = left.pop(0)
            for link in [link for link, on in shared.items() if job in on and link not in seen]:
                seen.add(link)
                offset = found[job] - alone[link][job]
                for other in shared[link]:
                    if other == job:
                        continue
                    cyclic |= other in found
                    if other not in found:
                        found[other] = (alone[link][other] + offset) % circle.slots_of[other]
                        left.append(other)
    shifts = [found[number] for number in range(len(jobs))]
    return settle(circle, shared, capacity, shifts) if cyclic else shifts


def _measured(
    circle: Circle, jobs: Sequence[PeriodicJob], capacity: dict[str, float], shifts: list[int]
) -> list[LinkPlan]:
    links = dict.fromkeys(link for job in jobs for link in job.links)
    found = []
    for link in links:
        on = [number for number, job in enumerate(jobs) if link in job.links]
        before = circle.demand({number: 0 for number in on})
        after = circle.demand({number: shifts[number] for number in on})
        rate = capacity[link]
        found.append(
            LinkPlan(
                link, rate, tuple(jobs[number].name for number in on), circle.length, circle.score(before, rate),
                circle.score(after, rate), float(before.max()), float(after.max()),
            )
        )  # fmt: skip
    return found
