"""Proves deadlocks from what blocked workers report: ranks that wait for each other in different orders. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from byteps_like.control.members.seats import Seat, SeatState
from byteps_like.errors import MismatchError

Operation = tuple[str, int]
"""A name and its round."""

STABLE_REPORTS = 2
"""Heartbeats in a row with the same wait, before it counts."""


def find_deadlock(workers: Sequence[Seat]) -> MismatchError | None:
    """An error if blocked workers wait for each other in a circle, naming what each waits for; else None.

    Worker A waits for B if A is blocked on a round that B has not started while B is blocked too. A circle of such
    waits can't end: each of its members would have to start something, and none of them can. Who waits for the same
    waits for the same workers, so circles are looked for among operations. Time: the length of all lists of what was
    started, not the number of pairs of workers.
    """
    # Of the others it isn't known what they have started: nobody is known to wait for them.
    blocked = [seat for seat in workers if _is_blocked(seat) and _started(seat) is not None]
    waiting: dict[Operation, list[Seat]] = {}
    for seat in blocked:
        waiting.setdefault(_operation(seat), []).append(seat)
    satisfied = _satisfied(blocked, waiting)
    operations = _circle(list(waiting), satisfied)
    circle = _by_seat(operations, waiting)
    if not circle:
        return None
    parts = [
        f"rank {seat.member.rank} waits for {_wait(seat)}, which rank {after.member.rank} has not pushed"
        for seat, after in zip(circle, circle[1:] + circle[:1], strict=True)
    ]
    return MismatchError(
        f"deadlock: {'; '.join(parts)}. The ranks wait in different orders; make it the same on all",
        key=_operation(circle[0])[0],
        operation="push_pull",
    )


def _is_blocked(seat: Seat) -> bool:
    return seat.state is SeatState.RUNNING and seat.waiting is not None and seat.waiting_reports >= STABLE_REPORTS


def _started(seat: Seat) -> Mapping[str, int] | None:
    assert seat.waiting is not None
    return seat.waiting.get("started")


def _lacks(other: Seat, operation: Operation) -> bool:
    """True if `other` has not started the round that somebody waits for."""
    name, wanted = operation
    started = _started(other)
    return started is not None and _operation(other) != operation and started.get(name, -1) < wanted


def _satisfied(blocked: Sequence[Seat], waiting: Mapping[Operation, Sequence[Seat]]) -> dict[Operation, set[Operation]]:
    """For each operation, those whose waiting workers have all started it, itself included."""
    rounds: dict[str, list[int]] = {}
    for name, wanted in waiting:
        rounds.setdefault(name, []).append(wanted)
    counts: dict[Operation, Counter[Operation]] = {operation: Counter() for operation in waiting}
    for seat in blocked:
        own = _operation(seat)
        for name, newest in (_started(seat) or {}).items():
            for wanted in rounds.get(name, ()):
                if wanted <= newest and (name, wanted) != own:
                    counts[name, wanted][own] += 1
    found = {
        operation: {other for other, count in counted.items() if count == len(waiting[other])}
        for operation, counted in counts.items()
    }
    for operation, all_started in found.items():
        all_started.add(operation)
    return found


def _circle(operations: list[Operation], satisfied: Mapping[Operation, set[Operation]]) -> list[Operation]:
    """A cycle, in order, in the graph with an edge to each operation that is not in `satisfied` of where it begins;
    empty if there is none. Depth-first, without recursion; each operation is left out of the search once it was
    visited, and each member of `satisfied` is passed over once.
    """
    following = Unvisited(len(operations))
    cursor = [0] * len(operations)
    place = {operation: number for number, operation in enumerate(operations)}
    on_path: dict[Operation, None] = {}
    for start in operations:
        if not following.take(place[start]):
            continue
        on_path[start] = None
        while on_path:
            last = next(reversed(on_path))
            passed = satisfied[last]
            first_look = cursor[place[last]] == 0
            if first_look and len(on_path) > sum(other in on_path for other in passed):
                path = list(on_path)
                return path[next(at for at, other in enumerate(path) if other not in passed) :]
            number = following.next(cursor[place[last]])
            while number < len(operations) and operations[number] in passed:
                number = following.next(number + 1)
            cursor[place[last]] = number
            if number == len(operations):
                del on_path[last]
            else:
                following.take(number)
                on_path[operations[number]] = None
    return []


class Unvisited:
    """Numbers below `count` that were not taken yet, in order."""

    def __init__(self, count: int) -> None:
        self._next = list(range(count + 1))

    def take(self, number: int) -> bool:
        """True if it was there; it is gone."""
        if self._next[number] != number:
            return False
        self._next[number] = number + 1
        return True

    def next(self, number: int) -> int:
        """The first one from `number` on, or `count`."""
        found = number
        while self._next[found] != found:
            found = self._next[found]
        while self._next[number] != number:
            self._next[number], number = found, self._next[number]
        return found


def _by_seat(circle: list[Operation], waiting: Mapping[Operation, Sequence[Seat]]) -> list[Seat]:
    """Workers that wait for these, each of which lacks what the one before it waits for."""
    return [
        next(seat for seat in waiting[operation] if _lacks(seat, before))
        for before, operation in zip(circle[-1:] + circle[:-1], circle, strict=True)
    ]


def _operation(seat: Seat) -> Operation:
    assert seat.waiting is not None
    return seat.waiting["name"], seat.waiting["round"]


def _wait(seat: Seat) -> str:
    name, wanted = _operation(seat)
    return f"{name!r} round {wanted}"
