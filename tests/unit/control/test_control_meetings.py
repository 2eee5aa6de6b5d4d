"""What the scheduler makes of the waits that ranks report."""

from __future__ import annotations

import dataclasses

from byteps_like.control.members.meetings import Meetings
from byteps_like.worker.api import Answer, Meeting
from tests.fakes.views import view_of


def _meetings() -> Meetings:
    meetings = Meetings()
    meetings.follow(view_of(range(3)))
    return meetings


def _at(use: int, data: str, point: str = "x") -> Meeting:
    return Meeting(point, use, f"'{point}'", f"allreduce of {data}", data)


def test_who_waits_for_the_same_agrees():
    meetings = _meetings()
    assert meetings.report(0, [_at(0, "a")]) == []
    assert meetings.report(1, [_at(0, "a")]) == []


def test_who_means_something_else_is_named():
    meetings = _meetings()
    meetings.report(0, [_at(3, "a"), _at(0, "c", "y")])
    meetings.report(2, [_at(3, "a")])
    (found,) = meetings.report(1, [_at(3, "b")])
    assert found.places == (("x", 3),)
    assert found.given_up == ("a", "b")
    assert "'x': the ranks disagree: ranks 0, 2 called allreduce of a, rank 1 called allreduce of b" in found.text


def test_each_disagreement_is_told_once():
    meetings = _meetings()
    meetings.report(0, [_at(0, "a")])
    assert len(meetings.report(1, [_at(0, "b")])) == 1
    assert meetings.report(2, [_at(0, "a")]) == []


def test_other_uses_of_a_name_do_not_meet():
    meetings = _meetings()
    meetings.report(0, [_at(0, "a")])
    assert meetings.report(1, [_at(1, "b")]) == []


def test_what_is_waited_for_no_longer_does_not_count():
    meetings = _meetings()
    meetings.report(0, [_at(0, "a")])
    meetings.report(0, [])
    assert meetings.report(1, [_at(0, "b")]) == []


def _stuck_at(point: str, use: int = 0, ranks: tuple[int, ...] = ()) -> Meeting:
    return dataclasses.replace(_at(use, "a", point), ranks=ranks, blocks=True)


def _answered(meetings: Meetings, waits: dict[int, list[Meeting]], begun: dict[int, tuple[bool, ...]]) -> list[str]:
    """What is found when all are asked, and still wait."""
    asked = meetings.question()
    assert asked is not None
    assert sorted(begun) == list(asked[1])
    found = [meetings.report(rank, waits[rank], Answer(asked[0].number, answer)) for rank, answer in begun.items()]
    assert not any(found[:-1]), "not before all have answered"
    return [one.text for one in found[-1]]


def _reported(waits: dict[int, list[Meeting]]) -> Meetings:
    meetings = _meetings()
    for rank, waiting in waits.items():
        assert meetings.report(rank, waiting) == []
    return meetings


def test_ranks_that_wait_for_each_other_are_asked_and_named():
    waits = {0: [_stuck_at("x")], 1: [_stuck_at("y")], 2: [_stuck_at("x")]}
    (text,) = _answered(_reported(waits), waits, {0: (True, False), 1: (False, True), 2: (True, False)})
    assert "ranks 0, 2 called allreduce of a ('x'), rank 1 called allreduce of a ('y')" in text


def test_nobody_is_asked_while_one_of_them_may_make_another_call():
    assert _reported({0: [_stuck_at("x")], 1: [_at(0, "a", "y")], 2: [_stuck_at("x")]}).question() is None
    assert _reported({0: [_stuck_at("x")], 2: [_stuck_at("x")]}).question() is None


def test_who_has_begun_it_and_gone_on_is_not_waited_for():
    waits = {0: [_stuck_at("x")], 1: [_stuck_at("y")], 2: [_stuck_at("x")]}
    assert _answered(_reported(waits), waits, {0: (True, False), 1: (True, True), 2: (True, False)}) == []


def test_who_waits_no_longer_when_asked_proves_nothing():
    waits = {0: [_stuck_at("x")], 1: [_stuck_at("y")], 2: [_stuck_at("x")]}
    meetings, gone_on = _reported(waits), waits | {1: [_stuck_at("z")]}
    assert _answered(meetings, gone_on, {0: (True, False), 1: (False, True), 2: (True, False)}) == []
    asked = meetings.question()
    assert asked is not None and asked[0].places == (("x", 0), ("z", 0))


def test_a_process_set_waits_for_its_own_ranks_only():
    assert (
        _reported(
            {0: [_stuck_at("s.x", ranks=(0, 2))], 1: [_stuck_at("y")], 2: [_stuck_at("s.x", ranks=(0, 2))]}
        ).question()
        is None
    )
    waits = {0: [_stuck_at("s.x", ranks=(0, 1))], 1: [_stuck_at("y", ranks=(0, 1))]}
    meetings = _reported(waits)
    assert len(_answered(meetings, waits, {0: (True, False), 1: (False, True)})) == 1


def test_a_rank_is_free_if_one_of_its_threads_is():
    waits = {0: [_stuck_at("x")], 1: [_stuck_at("y"), _stuck_at("z")], 2: [_stuck_at("x"), _at(0, "a", "z")]}
    # z has not been begun by rank 0 yet, which waits for rank 1 at x: so all three are stuck.
    assert _reported(waits).question() is not None
    waits[0] = [_stuck_at("x"), _at(0, "a", "z")]
    assert _reported(waits).question() is None


def test_the_same_is_asked_once():
    meetings = _reported({0: [_stuck_at("x")], 1: [_stuck_at("y")]})
    assert meetings.question() is not None
    assert meetings.question() is None
    meetings.report(1, [])
    assert meetings.question() is None


def test_after_a_standstill_nothing_of_it_is_left():
    waits = {0: [_stuck_at("x")], 1: [_stuck_at("y")], 2: [_stuck_at("x")]}
    meetings = _reported(waits)
    _answered(meetings, waits, {0: (True, False), 1: (False, True), 2: (True, False)})
    assert meetings.question() is None


def test_ranks_that_are_gone_prove_nothing_and_are_not_asked():
    waits = {0: [_stuck_at("x")], 1: [_stuck_at("x")], 2: [_stuck_at("y")]}
    meetings = _reported(waits)
    assert meetings.question() is not None
    meetings.leave_out({1})
    (text,) = _answered(meetings, waits, {0: (True, False), 2: (False, True)})
    assert "rank 0 called allreduce of a ('x'), rank 2 called allreduce of a ('y')" in text
    meetings = _reported({1: [_at(0, "b")]})
    meetings.leave_out({1})
    assert meetings.report(0, [_at(0, "a")]) == []
