"""The messages of a schedule in the order of their rounds, with words for what they hold: what is printed and drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from byteps_like.collectives.schedules.check import check
from byteps_like.collectives.schedules.count import depths
from byteps_like.collectives.schedules.schedule import Chunk, Kind, RankSchedule, StepKind


@dataclass(frozen=True)
class TimedMessage:
    """One message. `round` counts from 1; `first` is the number of its first chunk."""

    round: int
    source: int
    target: int
    label: str
    reduces: bool
    final: bool
    first: int


def messages(kind: Kind, schedules: Sequence[RankSchedule]) -> list[TimedMessage]:
    """All messages by round, sender and the sender's order. Raises ScheduleError for schedules that are wrong."""
    graph = check(kind, schedules)
    depth = depths(graph)
    found = []
    for receive, send in graph.sender.items():
        event, step = graph.events[send], graph.events[receive].step
        one = schedules[event.rank]
        buffers = (one.input, one.output, one.scratch)
        chunks = [buffers[buffer][slot] for buffer, slot in event.reads]
        message = TimedMessage(
            depth[receive],
            event.rank,
            event.step.peer,
            label(kind, chunks, len(schedules)),
            step.kind is StepKind.RECEIVE_REDUCE,
            step.final,
            _number(chunks[0]),
        )
        found.append((message.round, event.rank, send, message))
    return [message for *_, message in sorted(found, key=lambda item: item[:3])]


def label(kind: Kind, chunks: Sequence[Chunk], size: int) -> str:
    """What a message holds: pieces of the vector, sections by their rank, or blocks as source>target."""
    if kind is Kind.BARRIER:
        return "token"
    if kind is Kind.ALL_TO_ALL:
        names = [f"{chunk.section // size}>{chunk.section % size}" for chunk in chunks]
        return " ".join(names) if len(names) < 4 else f"{names[0]} … {names[-1]} ({len(names)})"
    numbers = [_number(chunk) for chunk in chunks]
    if len(numbers) > 1 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]}-{numbers[-1]}"
    return " ".join(map(str, numbers)) if len(numbers) < 5 else f"{numbers[0]} … {numbers[-1]} ({len(numbers)})"


def _number(chunk: Chunk) -> int:
    return chunk.section * chunk.pieces + chunk.piece
