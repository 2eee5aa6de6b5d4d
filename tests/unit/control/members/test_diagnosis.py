"""Deadlocks among many blocked workers: the fast search finds a circle exactly where the obvious one does."""

from __future__ import annotations

import re
import time

from hypothesis import given
from hypothesis import strategies as st

from byteps_like.control.members.diagnosis import STABLE_REPORTS, find_deadlock
from byteps_like.control.members.seats import JoinClaim, Seat, SeatState, Waiting
from byteps_like.control.types import Member, MemberRole


def seat(rank: int, name: str, wanted: int, started: dict[str, int] | None) -> Seat:
    member = Member(MemberRole.WORKER, rank, "id", "host", rank)
    claim = JoinClaim(f"w{rank}", member, 0, 0, {}, 1.0)
    waiting = Waiting(name=name, round=wanted)
    if started is not None:
        waiting["started"] = started
    return Seat(claim, member, 0.0, None, SeatState.RUNNING, waiting=waiting, waiting_reports=STABLE_REPORTS)


def waits_for(one: Seat, other: Seat) -> bool:
    assert one.waiting is not None and other.waiting is not None
    name, wanted = one.waiting["name"], one.waiting["round"]
    started = other.waiting.get("started")
    same = (other.waiting["name"], other.waiting["round"]) == (name, wanted)
    return started is not None and not same and started.get(name, -1) < wanted


def has_circle(seats: list[Seat]) -> bool:
    """By taking away, again and again, whoever waits for nobody."""
    left = list(seats)
    while True:
        stay = [one for one in left if any(waits_for(one, other) for other in left)]
        if len(stay) == len(left):
            return bool(left)
        left = stay


NAMES = st.sampled_from("abcd")
ROUNDS = st.integers(0, 2)
SEATS = st.lists(st.tuples(NAMES, ROUNDS, st.none() | st.dictionaries(NAMES, ROUNDS)), max_size=7)


@given(SEATS)
def test_a_circle_is_found_where_there_is_one_and_is_one(
    described: list[tuple[str, int, dict[str, int] | None]],
) -> None:
    seats = [seat(rank, *what) for rank, what in enumerate(described)]
    error = find_deadlock(seats)
    assert (error is not None) == has_circle(seats)
    if error is not None:
        pairs = re.findall(r"rank (\d+) waits for .*?, which rank (\d+) has not pushed", str(error))
        assert pairs and all(waits_for(seats[int(one)], seats[int(other)]) for one, other in pairs)
        assert [other for _, other in pairs] == [one for one, _ in pairs[1:] + pairs[:1]]


def test_thousands_of_blocked_ranks_are_looked_at_in_a_moment() -> None:
    count = 4000
    ring = [seat(rank, f"t{rank}", 1, {f"t{rank}": 1}) for rank in range(count)]
    chain = [
        seat(rank, f"t{rank}", 1, {f"t{other}": 1 for other in range(rank, min(rank + 20, count))})
        for rank in range(count)
    ]
    # Nobody waits for anybody: all have started everything, said by as few words as there are.
    none = [seat(rank, "t", 1, {"t": 1}) for rank in range(count)]
    begun = time.process_time()
    assert find_deadlock(ring) is not None
    assert find_deadlock(chain) is not None
    assert find_deadlock(none) is None
    assert time.process_time() - begun < 1.0
