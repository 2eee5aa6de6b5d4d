"""Steps as workers print them: which are new, which were made again, and how long there was none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps_like.launch.chaos.ledger import StepLedger


def ledger(*printed: tuple[float, int, int]) -> StepLedger:
    """Of lines (when, process, step)."""
    made = StepLedger()
    for now, process, number in printed:
        made.printed(process, number, now)
    return made


def test_a_step_is_new_when_the_first_worker_has_it() -> None:
    made = StepLedger()
    assert made.printed(1, 1, 10.0) is not None
    assert made.printed(2, 1, 10.5) is None
    gap = made.printed(2, 2, 12.0)
    assert gap is not None and gap.seconds == 2.0 and gap.end == 12.0
    assert (made.highest, made.began, made.newest_at) == (2, 10.0, 12.0)


def test_the_longest_gap_may_be_the_one_at_the_end() -> None:
    made = ledger((0.0, 1, 1), (1.0, 1, 2), (4.0, 1, 3), (5.0, 1, 4))
    assert (made.longest.seconds, made.longest.end) == (3.0, 4.0)
    made.close(9.5)
    assert (made.longest.seconds, made.longest.end) == (4.5, 9.5)


def test_steps_that_were_made_again_count_once_for_each_time() -> None:
    back_by_two = [(3.0, worker, step) for step in (2, 3) for worker in (1, 2)]
    forward = [(float(step), worker, step) for step in (1, 2, 3) for worker in (1, 2)]
    assert ledger(*forward).made_again == 0
    assert ledger(*forward, *back_by_two).made_again == 2
    assert ledger(*forward, *back_by_two, (4.0, 1, 3)).made_again == 3, "a third time"
    assert ledger(*forward, (4.0, 3, 3)).made_again == 0, "a new worker, which has not made it before"


def test_lines_may_come_after_several_steps() -> None:
    made = ledger((0.0, 1, 10), (1.0, 1, 20), (2.0, 1, 30))
    assert made.steps(0.0, 2.0) == 20 and made.rate(0.0, 2.0) == 10.0
    assert made.steps(0.5, 1.5) == 10


def test_nothing_is_known_without_steps() -> None:
    made = StepLedger()
    made.close(5.0)
    assert (made.began, made.highest, made.longest.seconds, made.rate(0.0, 5.0)) == (None, 0, 0.0, 0.0)


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 30)), min_size=1, max_size=60))
def test_gaps_add_up_to_the_time_between_the_first_and_the_newest(lines: list[tuple[int, int]]) -> None:
    made = StepLedger()
    gaps = [made.printed(process, number, float(now)) for now, (process, number) in enumerate(lines)]
    found = [gap.seconds for gap in gaps if gap is not None]
    assert made.began is not None
    assert sum(found) == pytest.approx(made.newest_at - made.began)
    assert made.longest.seconds == max(found)
    assert made.highest == max(number for _, number in lines)
