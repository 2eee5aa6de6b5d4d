"""Proves deadlocks from what blocked workers report: ranks that wait for each other in different orders. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from byteps_like.control.seats import Seat, SeatState
from byteps_like.errors import MismatchError

STABLE_REPORTS = 2
"""Heartbeats in a row with the same wait, before it counts."""


def find_deadlock(workers: Sequence[Seat]) -> MismatchError | None:
    """An error if blocked workers wait for each other in a circle, naming what each waits for; else None.

    Worker A waits for B if A is blocked on a round that B has not started while B is blocked too. A circle of such
    waits can't end: each of its members would have to start something, and none of them can.
    """
    blocked = [seat for seat in workers if _is_blocked(seat)]
    operations = {_operation(seat): seat for seat in blocked}
    lacking = {operation: [other for other in blocked if _lacks(other, seat)] for operation, seat in operations.items()}
    circle = _circle(blocked, {seat.id: lacking[_operation(seat)] for seat in blocked})
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


def _lacks(other: Seat, seat: Seat) -> bool:
    """True if `other` has not started the round that `seat` waits for. Without a list of what it started: unknown."""
    assert other.waiting is not None
    started = other.waiting.get("started")
    name, wanted = _operation(seat)
    return started is not None and _operation(other) != (name, wanted) and started.get(name, -1) < wanted


def _circle(blocked: list[Seat], waits: dict[str, list[Seat]]) -> list[Seat]:
    """Seats of one cycle in the graph `waits`, in order; empty if there is none. Depth-first, without recursion."""
    done: set[str] = set()
    for start in blocked:
        path, branches = [start], [iter(waits[start.id])]
        while path:
            following = next((seat for seat in branches[-1] if seat.id not in done), None)
            if following is None:
                done.add(path.pop().id)
                branches.pop()
            elif following in path:
                return path[path.index(following) :]
            else:
                path.append(following)
                branches.append(iter(waits[following.id]))
    return []


def _operation(seat: Seat) -> tuple[str, int]:
    assert seat.waiting is not None
    return seat.waiting["name"], seat.waiting["round"]


def _wait(seat: Seat) -> str:
    name, wanted = _operation(seat)
    return f"{name!r} round {wanted}"
