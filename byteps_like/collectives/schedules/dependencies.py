"""Which step of which rank waits for which: the graph that the checker and the counter walk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from byteps_like.collectives.schedules.schedule import Buffer, RankSchedule, Span, Step, StepKind
from byteps_like.errors import InvalidArgumentError

Place = tuple[int, int]
"""One slot of one rank: buffer (a plain integer: those hash ten times faster than an enum's) and index."""


_INPUT = int(Buffer.INPUT)


class ScheduleError(InvalidArgumentError):
    """A schedule is wrong; says where."""


@dataclass(frozen=True)
class StepEvent:
    """One step of one rank, with the slots that it reads and writes (input slots are output slots if in place)."""

    rank: int
    index: int
    step: Step
    reads: tuple[Place, ...]
    writes: tuple[Place, ...]

    def __str__(self) -> str:
        peer = "" if self.step.kind is StepKind.COPY else f" with rank {self.step.peer}, tag {self.step.tag}"
        return f"rank {self.rank} step {self.index} ({self.step.kind.name.lower()}{peer})"


@dataclass(frozen=True)
class Graph:
    """All steps of all ranks; `before[e]` are the events that event e waits for, `sender[e]` the send of a receive."""

    events: list[StepEvent]
    before: list[list[int]]
    sender: dict[int, int]

    @cached_property
    def order(self) -> list[int]:
        """Events so that each comes after what it waits for. Raises ScheduleError if some wait for themselves."""
        waiting = [len(before) for before in self.before]
        after: list[list[int]] = [[] for _ in self.events]
        for number, before in enumerate(self.before):
            for earlier in before:
                after[earlier].append(number)
        ready = [number for number, count in enumerate(waiting) if count == 0]
        order: list[int] = []
        while ready:
            number = ready.pop()
            order.append(number)
            for later in after[number]:
                waiting[later] -= 1
                if waiting[later] == 0:
                    ready.append(later)
        if len(order) < len(self.events):
            raise ScheduleError(f"steps wait for themselves: {self._cycle(waiting)}")
        return order

    def _cycle(self, waiting: Sequence[int]) -> str:
        number = next(number for number, count in enumerate(waiting) if count)
        path: list[int] = []
        while number not in path:
            path.append(number)
            number = next(earlier for earlier in self.before[number] if waiting[earlier])
        return " <- ".join(str(self.events[event]) for event in path[path.index(number) :])


def build(schedules: Sequence[RankSchedule], *, in_place: bool = False) -> Graph:
    """The graph of all ranks' schedules.

    A step waits for earlier steps of its rank that touch the same slots (not if both only read), a receive for its
    send. A send waits for nobody's receive: what comes early is kept. Raises ScheduleError for messages without
    a partner.
    """
    events: list[StepEvent] = []
    before: list[list[int]] = []
    for schedule in schedules:
        own, waits = of_rank(schedule, in_place=in_place, base=len(events))
        before += waits
        events += own
    sender = _match(events)
    for receive, send in sender.items():
        before[receive].append(send)
    return Graph(events, before, sender)


def of_rank(
    schedule: RankSchedule, *, in_place: bool = False, base: int = 0
) -> tuple[list[StepEvent], list[list[int]]]:
    """One rank's steps, and for each the earlier ones that it waits for, numbered from `base`."""
    events = list(_events(schedule, in_place))
    return events, _local(events, base)


def places(span: Span | None, schedule: RankSchedule, in_place: bool) -> tuple[Place, ...]:
    """The slots of a span. Raises ScheduleError if they are not in the buffer."""
    if span is None:
        return ()
    room = len((schedule.input, schedule.output, schedule.scratch)[span.buffer])
    if span.first < 0 or span.count < 1 or span.first + span.count > room:
        raise ScheduleError(f"rank {schedule.rank}: {span} is outside of a buffer of {room} slots")
    buffer, first = int(span.buffer), span.first
    if in_place and schedule.alias is not None and buffer == _INPUT:
        buffer, first = int(Buffer.OUTPUT), first + schedule.alias
    return ((buffer, first),) if span.count == 1 else tuple((buffer, first + step) for step in range(span.count))


def _events(schedule: RankSchedule, in_place: bool) -> Iterator[StepEvent]:
    for index, step in enumerate(schedule.steps):
        reads = places(step.source, schedule, in_place)
        writes = places(step.target, schedule, in_place)
        if step.kind is not StepKind.COPY or reads != writes:  # a copy onto itself is dropped
            yield StepEvent(schedule.rank, index, step, reads, writes)


def _local(events: Sequence[StepEvent], base: int) -> list[list[int]]:
    written: dict[Place, int] = {}
    read: dict[Place, list[int]] = {}
    before: list[list[int]] = []
    for number, event in enumerate(events, start=base):
        waits: set[int] = set()
        for place in event.reads:
            if place in written:
                waits.add(written[place])
        for place in event.writes:
            if place in written:
                waits.add(written[place])
            waits.update(read.pop(place, ()))
        for place in event.reads:
            read.setdefault(place, []).append(number)
        for place in event.writes:
            written[place] = number
            read.pop(place, None)
        before.append(list(waits))
    return before


def _match(events: Sequence[StepEvent]) -> dict[int, int]:
    """Receive -> its send."""
    sends: dict[tuple[int, int, int], int] = {}
    receives: dict[tuple[int, int, int], int] = {}
    for number, event in enumerate(events):
        step = event.step
        if step.kind is StepKind.COPY:
            continue
        out = step.kind is StepKind.SEND
        key = (event.rank, step.peer, step.tag) if out else (step.peer, event.rank, step.tag)
        seen = sends if out else receives
        if key in seen or step.peer == event.rank:
            raise ScheduleError(f"{event} is ambiguous: its message is matched by (sender, receiver, tag)")
        seen[key] = number
    for key in sends.keys() ^ receives.keys():
        raise ScheduleError(f"{events[sends.get(key, receives.get(key, -1))]} has no partner")
    return {number: sends[key] for key, number in receives.items()}
