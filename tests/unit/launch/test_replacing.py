"""Whose place is taken when a service or a worker dies, and when it is not any more."""

from __future__ import annotations

import signal

import pytest

from byteps_like.launch.child import ChildPart
from byteps_like.launch.elastic.crew import Crew, ElasticOptions
from byteps_like.launch.elastic.slots import Slots
from byteps_like.launch.ending.failure import Failure
from byteps_like.launch.ending.stopping import Why
from byteps_like.launch.ending.verdict import TIMEOUT_EXIT_CODE, JobEnding, verdict
from byteps_like.launch.options import RunOptions
from byteps_like.launch.replacing import DEATHS_SECONDS, Replacing

SERVER, OTHER, SCHEDULER = ChildPart("server", 0), ChildPart("server", 1), ChildPart("scheduler", 0)


def test_a_place_is_taken_once_and_stays_empty_while_it_is_held() -> None:
    replacing = Replacing(3)
    assert replacing.due(()) == []
    assert replacing.died(SERVER, 0.0) and replacing.died(SCHEDULER, 0.0)
    assert replacing.due({SERVER}) == [SCHEDULER]
    assert replacing.due({SERVER}) == []
    assert replacing.due(()) == [SERVER]
    assert replacing.due(()) == []


def test_who_dies_too_often_is_not_replaced() -> None:
    replacing = Replacing(3)
    assert [replacing.died(SERVER, at) for at in (0.0, 1.0, 2.0)] == [True] * 3
    assert replacing.died(OTHER, 2.0), "another one's deaths are its own"
    assert not replacing.died(SERVER, 3.0)
    late = Replacing(3)
    assert all(late.died(SERVER, at) for at in (0.0, 1.0, 2.0, DEATHS_SECONDS + 0.1))


def test_any_number_of_deaths_may_be_allowed() -> None:
    replacing = Replacing(0)
    assert all(replacing.died(SCHEDULER, 0.0) for _ in range(100))
    slots = Slots(1, most_deaths=0)
    slots.follow({"a": 1})
    for _ in range(100):
        (slot,) = slots.due(0.0)
        slots.began(slot)
        assert not slots.ended(slot, 0.0)


def test_slots_that_are_held_stay_empty() -> None:
    crew = Crew(ElasticOptions(1, 3), 3)
    assert [part.rank for part in crew.due(0.0, {ChildPart("worker", 1), SERVER})] == [0, 2]
    assert [part.rank for part in crew.due(0.0)] == [1]


def failed(part: str, *, consequence: bool = False) -> Failure:
    return Failure(part, 7, 3, 3, 1.0, consequence, ("ValueError: why",))


@pytest.mark.parametrize(
    ("ending", "code", "words"),
    [
        (JobEnding(Why.DONE, []), 0, ""),
        (JobEnding(Why.ENOUGH, [failed("server 0")]), 0, ""),
        (JobEnding(Why.FAILED, [failed("worker 1")]), 3, "worker 1 failed first: exit code 3"),
        (JobEnding(Why.FAILED, []), 1, "ended early"),
        (JobEnding(Why.DONE, [failed("worker 1")]), 0, "worker 1 failed (exit code 3: ValueError: why); the others"),
        (JobEnding(Why.DONE, [failed("worker 1", consequence=True)]), 0, ""),
        (JobEnding(Why.DONE, [failed("server 1")]), 3, "server 1 failed first"),
        (JobEnding(Why.TIMED_OUT, []), TIMEOUT_EXIT_CODE, "not finished after 5 s"),
        (JobEnding(Why.INTERRUPTED, [], signal.SIGTERM), 143, "ended by signal 15 (SIGTERM)"),
    ],
)
def test_the_end_of_an_elastic_job_in_words(ending: JobEnding, code: int, words: str) -> None:
    said: list[str] = []
    options = RunOptions(["true"], elastic=ElasticOptions(1, 2), timeout=5.0)
    assert verdict(ending, options, said.append) == code
    assert words in "\n".join(said) if words else not said


def test_who_has_left_for_another_one_has_not_died() -> None:
    replacing = Replacing(1)
    for _ in range(5):
        replacing.left(SERVER)
        assert replacing.due(()) == [SERVER]
    assert replacing.died(SERVER, 0.0)
