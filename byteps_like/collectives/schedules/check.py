"""Proves a schedule right by running it symbolically on all ranks: what a slot holds is the set of its contributions.

Proven: every chunk of every output holds each contribution exactly once and nothing else; `final` stands where a
reduction is complete and nowhere else; messages meet one to one with chunks of equal size; no step waits for itself, so
whatever order links deliver in, all ranks come to an end.
"""

from __future__ import annotations

from collections.abc import Sequence

from byteps_like.collectives.schedules.dependencies import Graph, Place, ScheduleError, StepEvent, build
from byteps_like.collectives.schedules.schedule import Buffer, Chunk, Kind, RankSchedule, StepKind

_INPUT, _OUTPUT, _SCRATCH = map(int, Buffer)
REDUCTIONS = (Kind.ALL_REDUCE, Kind.REDUCE, Kind.REDUCE_SCATTER)


def check(kind: Kind, schedules: Sequence[RankSchedule], root: int = 0, *, in_place: bool = False) -> Graph:
    """Checks the schedules of all ranks, in order of rank; returns their graph. Raises ScheduleError."""
    size = len(schedules)
    for rank, schedule in enumerate(schedules):
        _check_covers(f"rank {rank} input", schedule.input, _input_sections(kind, rank, size, root))
        _check_covers(f"rank {rank} output", schedule.output, _output_sections(kind, rank, size, root))
    graph = build(schedules, in_place=in_place)
    run = _Run(kind, schedules, graph, in_place)
    for number in graph.order:
        run.step(number)
    if kind is Kind.BARRIER:
        _check_all_have_come(graph, size)
    if kind is Kind.REDUCE_SCATTER:
        _check_overlap(schedules, graph)
    for rank, schedule in enumerate(schedules):
        for slot, chunk in enumerate(schedule.output):
            run.expect(rank, (_OUTPUT, slot), _contributions(kind, chunk.section, size, root))
    return graph


class _Run:
    """Slots of all ranks, and what each holds: a set of ranks as bits, or nothing yet."""

    def __init__(self, kind: Kind, schedules: Sequence[RankSchedule], graph: Graph, in_place: bool) -> None:
        self._graph = graph
        self._everybody = (1 << len(schedules)) - 1
        self._reduces = kind in REDUCTIONS
        self._sent: dict[int, tuple[int, ...]] = {}
        self._chunks = [(schedule.input, schedule.output, schedule.scratch) for schedule in schedules]
        self._held: list[dict[Place, int]] = []
        for rank, schedule in enumerate(schedules):
            shift = schedule.alias if in_place and schedule.alias is not None else None
            buffer = _INPUT if shift is None else _OUTPUT
            held: dict[Place, int] = {(buffer, slot + (shift or 0)): 1 << rank for slot in range(len(schedule.input))}
            if kind is Kind.BARRIER:  # its token says nothing
                held |= {(_SCRATCH, slot): 1 << rank for slot in range(len(schedule.scratch))}
            self._held.append(held)

    def step(self, number: int) -> None:
        event = self._graph.events[number]
        held, kind = self._held[event.rank], event.step.kind
        known = tuple(self._known(event, place) for place in event.reads)
        if kind is StepKind.SEND:
            self._sent[number] = known
            return
        if kind is StepKind.COPY:
            self._check_sizes(event, event.reads, event.rank)
        else:
            send = self._graph.sender[number]
            self._check_sizes(event, self._graph.events[send].reads, event.step.peer)
            came = self._sent.pop(send)
            if kind is StepKind.RECEIVE_REDUCE:
                self._check_sizes(event, event.reads, event.rank)
            known = tuple(map(self._add, [event] * len(came), known, came)) if known else came
        held.update(zip(event.writes, known, strict=True))

    def expect(self, rank: int, place: Place, contributions: int) -> None:
        found = self._held[rank].get(place)
        if found != contributions:
            text = "nothing" if found is None else _ranks(found)
            raise ScheduleError(f"rank {rank} {_name(place)} ends with {text}, expected {_ranks(contributions)}")

    def _known(self, event: StepEvent, place: Place) -> int:
        found = self._held[event.rank].get(place)
        if found is None:
            raise ScheduleError(f"{event} reads {_name(place)}, in which nothing is yet")
        return found

    def _add(self, event: StepEvent, one: int, other: int) -> int:
        if not self._reduces:
            raise ScheduleError(f"{event} reduces in a collective without reduction")
        if one & other:
            raise ScheduleError(f"{event} counts {_ranks(one & other)} twice")
        both = one | other
        if event.step.final != (both == self._everybody):
            raise ScheduleError(f"{event}: final is {event.step.final}, and it holds {_ranks(both)}")
        return both

    def _check_sizes(self, event: StepEvent, source: Sequence[Place], source_rank: int) -> None:
        came = [self._chunks[source_rank][buffer][slot] for buffer, slot in source]
        goes = [self._chunks[event.rank][buffer][slot] for buffer, slot in event.writes]
        if came != goes:
            raise ScheduleError(f"{event} puts {came} where {goes} belongs")


def _check_covers(what: str, chunks: Sequence[Chunk], wanted: Sequence[int]) -> None:
    """Every wanted section is there once, cut into equal pieces."""
    found: dict[int, list[Chunk]] = {section: [] for section in wanted}
    for chunk in chunks:
        if chunk.section not in found:
            raise ScheduleError(f"{what} has {chunk}, but its sections are {list(wanted)}")
        found[chunk.section].append(chunk)
    for section, there in found.items():
        if there != [Chunk(section, piece, len(there)) for piece in range(len(there))] or not there:
            raise ScheduleError(f"{what} does not cover section {section}: {there}")


def _input_sections(kind: Kind, rank: int, size: int, root: int) -> Sequence[int]:
    match kind:
        case Kind.ALL_REDUCE | Kind.REDUCE:
            return [0]
        case Kind.BROADCAST:
            return [0] if rank == root else []
        case Kind.REDUCE_SCATTER:
            return range(size)
        case Kind.ALL_GATHER | Kind.GATHER:
            return [rank]
        case Kind.SCATTER:
            return range(size) if rank == root else []
        case Kind.ALL_TO_ALL:
            return range(rank * size, rank * size + size)
        case Kind.BARRIER:
            return []


def _output_sections(kind: Kind, rank: int, size: int, root: int) -> Sequence[int]:
    match kind:
        case Kind.ALL_REDUCE | Kind.BROADCAST:
            return [0]
        case Kind.REDUCE:
            return [0] if rank == root else []
        case Kind.REDUCE_SCATTER | Kind.SCATTER:
            return [rank]
        case Kind.ALL_GATHER:
            return range(size)
        case Kind.GATHER:
            return range(size) if rank == root else []
        case Kind.ALL_TO_ALL:
            return range(rank, size * size, size)
        case Kind.BARRIER:
            return []


def _contributions(kind: Kind, section: int, size: int, root: int) -> int:
    if kind in REDUCTIONS:
        return (1 << size) - 1
    if kind in (Kind.BROADCAST, Kind.SCATTER):
        return 1 << root
    return 1 << (section // size if kind is Kind.ALL_TO_ALL else section)


def _check_all_have_come(graph: Graph, size: int) -> None:
    """A barrier: what a rank does last comes after something of every other rank."""
    come = [0] * len(graph.events)
    seen = [1 << rank for rank in range(size)]
    for number in graph.order:
        rank = graph.events[number].rank
        come[number] = 1 << rank
        for earlier in graph.before[number]:
            come[number] |= come[earlier]
        seen[rank] |= come[number]
    for rank, found in enumerate(seen):
        if found != (1 << size) - 1:
            raise ScheduleError(f"rank {rank} leaves the barrier when only {_ranks(found)} have come to it")


def _check_overlap(schedules: Sequence[RankSchedule], graph: Graph) -> None:
    """A reduce-scatter's output may lie on its own part of the input: that is not read once the output is written."""
    own = [{(_INPUT, n) for n, chunk in enumerate(one.input) if chunk.section == one.rank} for one in schedules]
    readers: list[set[int]] = [set() for _ in schedules]
    for number, event in enumerate(graph.events):
        if not own[event.rank].isdisjoint(event.reads):
            readers[event.rank].add(number)
    for number, event in enumerate(graph.events):
        if event.writes and event.writes[0][0] == _OUTPUT and readers[event.rank] - {number}:
            missing = readers[event.rank] - _ancestors(graph, number)
            if missing:
                raise ScheduleError(f"{event} may overwrite what {graph.events[missing.pop()]} has yet to read")


def _ancestors(graph: Graph, number: int) -> set[int]:
    """The event and those of its own rank that it waits for."""
    found, left = {number}, [number]
    while left:
        for earlier in graph.before[left.pop()]:
            if earlier not in found and graph.events[earlier].rank == graph.events[number].rank:
                found.add(earlier)
                left.append(earlier)
    return found


def _ranks(bits: int) -> str:
    return "ranks " + ", ".join(str(rank) for rank in range(bits.bit_length()) if bits >> rank & 1)


def _name(place: Place) -> str:
    return f"{Buffer(place[0]).name.lower()}[{place[1]}]"
