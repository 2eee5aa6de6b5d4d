"""Counts what a schedule sends, exactly: messages and sections for each link, and messages that follow one another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from byteps_like.collectives.schedules.builder import Cost
from byteps_like.collectives.schedules.dependencies import Graph
from byteps_like.collectives.schedules.schedule import Chunk, Layout, RankSchedule, StepKind


@dataclass(frozen=True)
class TrafficCount:
    """Messages, and what they hold as a share of one section (sections of equal size)."""

    messages: int = 0
    sections: Fraction = Fraction(0)

    def __add__(self, other: TrafficCount) -> TrafficCount:
        return TrafficCount(self.messages + other.messages, self.sections + other.sections)


def links(schedules: Sequence[RankSchedule]) -> dict[tuple[int, int], TrafficCount]:
    """(sender, receiver) -> what goes there; links without traffic are left out."""
    chunks: dict[tuple[int, int], list[Chunk]] = {}
    messages: Counter[tuple[int, int]] = Counter()
    for schedule in schedules:
        buffers = (schedule.input, schedule.output, schedule.scratch)
        for step in schedule.steps:
            if step.kind is StepKind.SEND and step.source is not None:
                first, count = step.source.first, step.source.count
                link = (schedule.rank, step.peer)
                messages[link] += 1
                chunks.setdefault(link, []).extend(buffers[step.source.buffer][first : first + count])
    return {link: TrafficCount(messages[link], _sections(sent)) for link, sent in chunks.items()}


def _sections(chunks: Iterable[Chunk]) -> Fraction:
    """What they are of a section, with one fraction for each size: those are added slowly."""
    cut = Counter(chunk.pieces for chunk in chunks)
    return sum((Fraction(number, pieces) for pieces, number in cut.items()), Fraction(0))


def sent(schedules: Sequence[RankSchedule], layout: Layout | None = None) -> list[TrafficCount]:
    """What each rank sends; with a layout only what leaves its host."""
    totals = [TrafficCount()] * len(schedules)
    for (source, target), traffic in links(schedules).items():
        if layout is None or layout.hosts[source] != layout.hosts[target]:
            totals[source] += traffic
    return totals


def depths(graph: Graph) -> list[int]:
    """For each event how many messages had to follow one another until it was done: the round of a receive."""
    depth = [0] * len(graph.events)
    for number in graph.order:
        own = graph.sender.get(number, -1)
        for earlier in graph.before[number]:
            depth[number] = max(depth[number], depth[earlier] + (earlier == own))
    return depth


def rounds(graph: Graph) -> int:
    """The longest chain of messages that wait for one another."""
    return max(depths(graph), default=0)


def measured(schedules: Sequence[RankSchedule], graph: Graph) -> Cost:
    """The cost as counted, to hold against the formula."""
    each = sent(schedules)
    return Cost(rounds(graph), max(one.messages for one in each), max(one.sections for one in each))
