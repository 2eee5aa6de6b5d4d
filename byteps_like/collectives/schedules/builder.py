"""What generators of schedules build on: a rank's task, and a builder that allots tags, scratch slots and sources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from byteps_like.collectives.schedules.schedule import Buffer, Chunk, Layout, RankSchedule, Span, Step, StepKind

_STREAM = 1 << 16  # messages of one stream between two ranks


@dataclass(frozen=True)
class Task:
    """What a generator is asked for: one rank's part. `argument` is what follows the colon in "multi_ring:1,5"."""

    rank: int
    layout: Layout
    root: int = 0
    argument: str = ""

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.layout.size

    @property
    def relative(self) -> int:
        """This rank counted from the root."""
        return (self.rank - self.root) % self.size

    def absolute(self, relative: int) -> int:
        """The rank that is `relative` behind the root."""
        return (relative + self.root) % self.size


@dataclass(frozen=True)
class Cost:
    """What a schedule costs with root 0 and sections of equal size.

    `messages`, `sections`: the most that any rank sends, exactly. `rounds`: the most messages that follow one another,
    exactly so for powers of two on equal hosts; otherwise some algorithms have one or two fewer.
    """

    rounds: int
    messages: int
    sections: Fraction


def cost(rounds: int, messages: int, sections: int | Fraction) -> Cost:
    """A Cost whose sections may be given as an integer."""
    return Cost(rounds, messages, Fraction(sections))


def pieces(count: int, section: int = 0) -> tuple[Chunk, ...]:
    """A section cut into `count` even pieces."""
    return tuple(Chunk(section, piece, count) for piece in range(count))


def sections(numbers: Sequence[int]) -> tuple[Chunk, ...]:
    """Whole sections."""
    return tuple(Chunk(number) for number in numbers)


class Builder:
    """Collects one rank's steps in program order.

    The n-th message of a stream from a to b is met by the n-th receive of that stream from a on b: set `stream` where
    two parts of an algorithm use the same link in orders of their own.
    """

    def __init__(
        self, task: Task, input: Sequence[Chunk] = (), output: Sequence[Chunk] = (), alias: int | None = None
    ) -> None:
        self.task = task
        self.stream = 0
        self.input = tuple(input)
        self.output = tuple(output)
        self._alias = alias
        self._scratch: list[Chunk] = []
        self._steps: list[Step] = []
        self._tags: Counter[tuple[bool, int, int]] = Counter()

    def scratch(self, chunks: Sequence[Chunk]) -> int:
        """Takes scratch slots that lie one behind the other; returns the first."""
        first = len(self._scratch)
        self._scratch += chunks
        return first

    def send(self, peer: int, source: Span) -> None:
        """`source` goes to `peer`."""
        self._steps.append(Step(StepKind.SEND, peer, self._tag(True, peer), source=source))

    def receive(self, peer: int, target: Span) -> None:
        """`target` comes from `peer`."""
        self._steps.append(Step(StepKind.RECEIVE, peer, self._tag(False, peer), target=target))

    def reduce(self, peer: int, source: Span, target: Span, *, final: bool = False) -> None:
        """`target` becomes `source` op what comes from `peer`; `final`: it then holds every contribution."""
        tag = self._tag(False, peer)
        self._steps.append(Step(StepKind.RECEIVE_REDUCE, peer, tag, source=source, target=target, final=final))

    def copy(self, source: Span, target: Span) -> None:
        """`target` becomes `source`."""
        self._steps.append(Step(StepKind.COPY, source=source, target=target))

    def build(self) -> RankSchedule:
        """The finished schedule."""
        task = self.task
        scratch, steps = tuple(self._scratch), tuple(self._steps)
        return RankSchedule(task.rank, task.size, self.input, self.output, scratch, steps, self._alias)

    def _tag(self, sending: bool, peer: int) -> int:
        key = (sending, peer, self.stream)
        self._tags[key] += 1
        return self.stream * _STREAM + self._tags[key] - 1


Slot = tuple[Buffer, int]


class Vector:
    """Numbered chunks that are reduced or filled in; knows where the data of each is now.

    Data stays where it was (`start`) until a step writes it to its `target`; a target of None is scratch, taken when
    it is first written. So a call out of place reads the caller's source and writes its target, with no copy between.
    """

    def __init__(
        self, builder: Builder, chunks: Sequence[Chunk], start: Sequence[Slot | None], target: Sequence[Slot | None]
    ) -> None:
        self._builder = builder
        self._chunks = tuple(chunks)
        self._at = list(start)
        self._target = list(target)

    def send(self, peer: int, first: int, count: int = 1) -> None:
        """Sends chunks [first, first + count) as one message."""
        self._builder.send(peer, self._here(first, count))

    def receive(self, peer: int, first: int, count: int = 1) -> None:
        """Fills chunks [first, first + count) with one message."""
        self._builder.receive(peer, self._there(first, count))
        self._at[first : first + count] = self._target[first : first + count]

    def reduce(self, peer: int, first: int, count: int = 1, *, final: bool = False) -> None:
        """Reduces one message into chunks [first, first + count)."""
        self._builder.reduce(peer, self._here(first, count), self._there(first, count), final=final)
        self._at[first : first + count] = self._target[first : first + count]

    def aim(self, chunk: int, target: Slot) -> None:
        """What is written to `chunk` from here on goes to `target`."""
        self._target[chunk] = target

    def settle(self, first: int = 0, count: int | None = None) -> None:
        """Copies to their targets the chunks that are known but not yet there."""
        for index in range(first, len(self._chunks) if count is None else first + count):
            at, target = self._at[index], self._target[index]
            if at is not None and target is not None and at != target:
                self._builder.copy(Span(*at), Span(*target))
                self._at[index] = target

    def _here(self, first: int, count: int) -> Span:
        return _span(self._at[first : first + count])

    def _there(self, first: int, count: int) -> Span:
        if all(slot is None for slot in self._target[first : first + count]):
            scratch = self._builder.scratch(self._chunks[first : first + count])
            for index in range(count):
                self._target[first + index] = (Buffer.SCRATCH, scratch + index)
        return _span(self._target[first : first + count])


def _span(slots: Sequence[Slot | None]) -> Span:
    head = slots[0]
    assert head is not None, "a chunk that this rank does not have"
    assert all(slot == (head[0], head[1] + n) for n, slot in enumerate(slots)), "a span in several places"
    return Span(head[0], head[1], len(slots))


def whole_vector(task: Task, count: int) -> tuple[Builder, Vector]:
    """For an all-reduce: one section of `count` pieces, from the input to the output."""
    chunks = pieces(count)
    builder = Builder(task, chunks, chunks, alias=0)
    start = [(Buffer.INPUT, n) for n in range(count)]
    return builder, Vector(builder, chunks, start, [(Buffer.OUTPUT, n) for n in range(count)])


def part_of_each(task: Task) -> tuple[Builder, Vector]:
    """For an all-gather: this rank's section in the input, all of them in the output."""
    chunks = sections(range(task.size))
    builder = Builder(task, [chunks[task.rank]], chunks, alias=task.rank)
    start: list[Slot | None] = [None] * task.size
    start[task.rank] = (Buffer.INPUT, 0)
    return builder, Vector(builder, chunks, start, [(Buffer.OUTPUT, n) for n in range(task.size)])


def part_for_each(task: Task) -> tuple[Builder, Vector]:
    """For a reduce-scatter: all sections in the input, this rank's in the output; aim it there for its last step."""
    chunks = sections(range(task.size))
    builder = Builder(task, chunks, [chunks[task.rank]])
    return builder, Vector(builder, chunks, [(Buffer.INPUT, n) for n in range(task.size)], [None] * task.size)


def blocks(task: Task) -> Builder:
    """For an all-to-all: the blocks from this rank in the input, those to it in the output."""
    size, rank = task.size, task.rank
    return Builder(
        task,
        sections([rank * size + target for target in range(size)]),
        sections([source * size + rank for source in range(size)]),
    )


def from_root(task: Task, count: int) -> tuple[Builder, Vector]:
    """For a broadcast: one section of `count` pieces, in the input of the root and the output of all."""
    chunks = pieces(count)
    at_root = task.rank == task.root
    builder = Builder(task, chunks if at_root else (), chunks, alias=0)
    start: list[Slot | None] = [(Buffer.INPUT, n) if at_root else None for n in range(count)]
    return builder, Vector(builder, chunks, start, [(Buffer.OUTPUT, n) for n in range(count)])


def to_root(task: Task, count: int) -> tuple[Builder, Vector]:
    """For a reduce: one section of `count` pieces, from the input of all to the root's output; others use scratch."""
    chunks = pieces(count)
    at_root = task.rank == task.root
    builder = Builder(task, chunks, chunks if at_root else (), alias=0 if at_root else None)
    target: list[Slot | None] = [(Buffer.OUTPUT, n) if at_root else None for n in range(count)]
    return builder, Vector(builder, chunks, [(Buffer.INPUT, n) for n in range(count)], target)
