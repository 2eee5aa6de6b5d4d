"""Collectives: the runtime's own schedules, step by step, over simulated links.

A step runs as far as the bytes that it needs are there, so a chunk is forwarded while it comes; what is sent next on a
link goes by priority, then age. The rules are those of collectives/execution/run_steps.cc and exchange_outbox.cc.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from byteps_like.collectives import library
from byteps_like.collectives.planning import compile
from byteps_like.collectives.schedules import dependencies
from byteps_like.collectives.schedules.schedule import Buffer, Kind, Layout, Span, StepKind
from byteps_like.planner.clock import SimulatedClock
from byteps_like.planner.link import Link, Segment

Call = tuple[int, int]
"""Key and round: which messages belong together."""


@dataclass(frozen=True)
class SimulatedStep:
    """One step with sizes. It may run up to `progress + lead` bytes of each (earlier step, lead) that is not done."""

    kind: StepKind
    peer: int
    tag: int
    length: int
    after: tuple[tuple[int, int], ...]
    wakes: list[int] = field(default_factory=list)


@lru_cache(maxsize=4096)
def steps(
    kind: Kind, algorithm: str, rank: int, layout: Layout, count: int, itemsize: int
) -> tuple[SimulatedStep, ...]:
    """One rank's steps in a call with sections of `count` elements, in place where the kind has that."""
    schedule = library.rank_schedule(kind, algorithm, rank, layout)
    in_place = kind is Kind.ALL_REDUCE
    tables = compile.tables(schedule, count, itemsize)
    places = {Buffer.INPUT: tables.input, Buffer.OUTPUT: tables.output, Buffer.SCRATCH: tables.scratch}
    events, before = dependencies.of_rank(schedule, in_place=in_place)
    begins = [_begins(event, places) for event in events]
    found = []
    for number, event in enumerate(events):
        after = tuple((earlier, _lead(events, begins, earlier, number)) for earlier in before[number])
        span = event.step.source if event.step.source is not None else event.step.target
        found.append(SimulatedStep(event.step.kind, event.step.peer, event.step.tag, _length(span, places), after))
        for earlier in before[number]:
            found[earlier].wakes.append(number)
    return tuple(found)


def _length(span: Span | None, places: dict[Buffer, compile.ChunkTable]) -> int:
    assert span is not None
    return sum(nbytes for _, nbytes in places[span.buffer][span.first : span.first + span.count])


def _begins(event: dependencies.StepEvent, places: dict[Buffer, compile.ChunkTable]) -> dict[int, int]:
    """Where the step's bytes begin in each buffer that it touches, by side: 0 reads, 1 writes."""
    sides = enumerate((event.reads, event.writes))
    return {side: places[Buffer(slots[0][0])][slots[0][1]][0] for side, slots in sides if slots}


def _lead(events: list[dependencies.StepEvent], begins: list[dict[int, int]], earlier: int, number: int) -> int:
    """How far `number` may be ahead of `earlier`, in bytes: the least over the places that both touch."""
    first, second = events[earlier], events[number]
    pairs = [
        (0, 1, first.reads, second.writes),
        (1, 0, first.writes, second.reads),
        (1, 1, first.writes, second.writes),
    ]
    return min(
        begins[earlier][side] - begins[number][other]
        for side, other, theirs, ours in pairs
        if not set(theirs).isdisjoint(ours)
    )


@dataclass(slots=True)
class SimulatedMessage:
    """A send step under way."""

    run: Run
    step: int
    peer: int
    tag: int
    turn: int
    order: int = 0
    ready: int = 0
    next: int = 0
    posted: bool = False


class Outbox:
    """What one rank sends to another. See link.SegmentSource."""

    link: Link

    def __init__(self, segment_bytes: int) -> None:
        self._segment_bytes = segment_bytes
        self._queue: list[tuple[int, int, SimulatedMessage]] = []
        self._orders = 0

    def offer(self, message: SimulatedMessage) -> None:
        """More of it can be sent, or all of an empty one."""
        if message.order == 0:
            self._orders += 1
            message.order = self._orders
        if not message.posted:
            message.posted = True
            heapq.heappush(self._queue, (-message.run.priority, message.order, message))
        self.link.kick()

    def next_segment(self) -> Segment | None:
        """See link.SegmentSource."""
        if not self._queue:
            return None
        message = self._queue[0][2]
        segment = Segment(message, message.next, min(message.ready - message.next, self._segment_bytes))
        message.next += segment.nbytes
        if message.next == message.ready:
            heapq.heappop(self._queue)
            message.posted = False
        return segment

    def sent(self, segment: Segment) -> None:
        """See link.SegmentSource."""
        message: SimulatedMessage = segment.what
        message.run.progressed(message.step, segment.offset + segment.nbytes)


class SimulatedExchange:
    """One rank's outboxes and runs. With `mirror` it stands for all ranks of a schedule that is the same for each:
    its n-th send is met by its own n-th receive."""

    def __init__(
        self,
        clock: SimulatedClock,
        rank: int,
        connect: Callable[[int, int], Outbox],
        copy_rate: float,
        mirror: bool = False,
    ) -> None:
        """`connect` makes the outbox from one rank to another, when it is first needed."""
        self.clock, self.rank, self.copy_rate, self.mirror = clock, rank, copy_rate, mirror
        self._connect = connect
        self._outboxes: dict[int, Outbox] = {}
        self.copy_free = 0.0
        self._runs: dict[Call, Run] = {}
        self._early: defaultdict[Call, list[Segment]] = defaultdict(list)

    def outbox(self, peer: int) -> Outbox:
        """What this rank sends to `peer`."""
        if peer not in self._outboxes:
            self._outboxes[peer] = self._connect(self.rank, peer)
        return self._outboxes[peer]

    def launch(self, call: Call, plan: tuple[SimulatedStep, ...], priority: int, done: Callable[[], None]) -> None:
        """Starts this rank's part of a call."""
        run = self._runs[call] = Run(self, call, plan, priority, done)
        run.start()
        for segment in self._early.pop(call, ()):
            run.receive(segment)

    def receive(self, segment: Segment) -> None:
        """A segment has come; kept until this rank makes the call, too."""
        message: SimulatedMessage = segment.what
        run = self._runs.get(message.run.call)
        if run is None:
            self._early[message.run.call].append(segment)
        else:
            run.receive(segment)

    def ended(self, run: Run) -> None:
        """All its steps are done."""
        del self._runs[run.call]


class Run:
    """One rank's part of one call."""

    def __init__(
        self,
        owner: SimulatedExchange,
        call: Call,
        plan: tuple[SimulatedStep, ...],
        priority: int,
        done: Callable[[], None],
    ) -> None:
        self.call, self.priority = call, priority
        self._owner, self._plan, self._done = owner, plan, done
        self._progress = [0] * len(plan)
        self._finished = [False] * len(plan)
        self._remaining = len(plan)
        self._messages: dict[int, SimulatedMessage] = {}
        self._receives: dict[tuple[int, int], int] = {}
        self._waiting: defaultdict[int, list[Segment]] = defaultdict(list)
        self._copying: set[int] = set()

    def start(self) -> None:
        """Everything that waits for nothing begins."""
        received = 0
        for number, step in enumerate(self._plan):
            if step.kind is StepKind.SEND:
                turn = len(self._messages)
                self._messages[number] = SimulatedMessage(self, number, self._owner.rank, step.tag, turn)
            elif step.kind is not StepKind.COPY:
                self._receives[(-1, received) if self._owner.mirror else (step.peer, step.tag)] = number
                received += 1
        if not self._plan:
            self._done()
        for number in range(len(self._plan)):
            self._try(number)

    def receive(self, segment: Segment) -> None:
        """What a peer has sent."""
        message: SimulatedMessage = segment.what
        number = self._receives[(-1, message.turn) if self._owner.mirror else (message.peer, message.tag)]
        self._waiting[number].append(segment)
        self._try(number)

    def progressed(self, number: int, progress: int) -> None:
        """A step has got so far, in bytes."""
        self._progress[number] = progress
        step = self._plan[number]
        if progress >= step.length and not self._finished[number]:
            self._finished[number] = True
            self._remaining -= 1
        for later in step.wakes:
            self._try(later)
        if self._remaining == 0:
            self._remaining = -1
            self._owner.ended(self)
            self._done()

    def _limit(self, number: int) -> int:
        step = self._plan[number]
        limit = step.length
        for earlier, lead in step.after:
            if not self._finished[earlier]:
                limit = min(limit, self._progress[earlier] + lead)
        return limit

    def _free(self, number: int) -> bool:
        return all(self._finished[earlier] for earlier, _ in self._plan[number].after)

    def _try(self, number: int) -> None:
        if self._finished[number]:
            return
        kind = self._plan[number].kind
        if kind is StepKind.SEND:
            self._try_send(number)
        elif kind is StepKind.COPY:
            self._try_copy(number)
        else:
            self._try_receive(number)

    def _try_send(self, number: int) -> None:
        step, message = self._plan[number], self._messages[number]
        limit = self._limit(number)
        if limit > message.ready or (step.length == 0 and message.order == 0 and self._free(number)):
            message.ready = max(limit, 0)
            self._owner.outbox(step.peer).offer(message)

    def _try_receive(self, number: int) -> None:
        waiting = self._waiting[number]
        while waiting:
            end = min(waiting[0].offset + waiting[0].nbytes, self._plan[number].length)
            whole = waiting[0].what.run._plan[waiting[0].what.step].length
            if waiting[0].offset + waiting[0].nbytes == whole:
                end = self._plan[number].length  # of a mirror's messages one may be a few bytes longer than the other
            if self._limit(number) < end or (end == 0 and not self._free(number)):
                return
            waiting.pop(0)
            self.progressed(number, end)

    def _try_copy(self, number: int) -> None:
        owner, limit = self._owner, self._limit(number)
        if number in self._copying or (limit <= self._progress[number] and self._plan[number].length > 0):
            return
        if self._plan[number].length == 0 and not self._free(number):
            return
        self._copying.add(number)
        owner.copy_free = max(owner.copy_free, owner.clock.now) + (limit - self._progress[number]) / owner.copy_rate
        owner.clock.at(owner.copy_free, self._copied, number, limit)

    def _copied(self, number: int, progress: int) -> None:
        self._copying.discard(number)
        self.progressed(number, progress)
        self._try(number)
