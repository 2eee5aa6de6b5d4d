"""What the scheduler makes of the waits that ranks report."""

from __future__ import annotations

from byteps_like.control.meetings import Meetings
from byteps_like.worker.api import Meeting


def _at(use: int, data: str, point: str = "x") -> Meeting:
    return Meeting(point, use, f"'{point}'", f"allreduce of {data}", data)


def test_who_waits_for_the_same_agrees():
    meetings = Meetings()
    assert meetings.report(0, [_at(0, "a")]) == []
    assert meetings.report(1, [_at(0, "a")]) == []


def test_who_means_something_else_is_named():
    meetings = Meetings()
    meetings.report(0, [_at(3, "a"), _at(0, "c", "y")])
    meetings.report(2, [_at(3, "a")])
    (found,) = meetings.report(1, [_at(3, "b")])
    assert (found.point, found.use) == ("x", 3)
    assert "'x': the ranks disagree: ranks 0, 2 called allreduce of a, rank 1 called allreduce of b" in found.text


def test_each_disagreement_is_told_once():
    meetings = Meetings()
    meetings.report(0, [_at(0, "a")])
    assert len(meetings.report(1, [_at(0, "b")])) == 1
    assert meetings.report(2, [_at(0, "a")]) == []


def test_other_uses_of_a_name_do_not_meet():
    meetings = Meetings()
    meetings.report(0, [_at(0, "a")])
    assert meetings.report(1, [_at(1, "b")]) == []


def test_what_is_waited_for_no_longer_does_not_count():
    meetings = Meetings()
    meetings.report(0, [_at(0, "a")])
    meetings.report(0, [])
    assert meetings.report(1, [_at(0, "b")]) == []
