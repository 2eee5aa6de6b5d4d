"""Timers of a state machine: when the next is due, and in which order those that are due act."""

from hypothesis import given
from hypothesis import strategies as st

from byteps_like.control.members.timers import Timers

TIMES = st.lists(st.one_of(st.none(), st.integers(0, 9)), max_size=6)


class Journal:
    """A number of timers that note who acted when."""

    def __init__(self, times: list[int | None]) -> None:
        self.acted: list[int] = []
        self.timers = Timers()
        for number, at in enumerate(times):
            timer = self.timers.add(lambda _now, number=number: self.acted.append(number))
            if at is not None:
                timer.start(at)


@given(TIMES, st.integers(0, 9))
def test_a_tick_fires_what_is_due_in_order_of_addition_and_each_once(times: list[int | None], now: int) -> None:
    journal = Journal(times)
    due = [number for number, at in enumerate(times) if at is not None and at <= now]
    journal.timers.tick(now)
    assert journal.acted == due
    journal.timers.tick(now)
    assert journal.acted == due, "none fires twice"


@given(TIMES)
def test_next_is_the_first_time_at_which_a_tick_does_something(times: list[int | None]) -> None:
    journal = Journal(times)
    set_times = sorted(at for at in times if at is not None)
    assert journal.timers.next() == (set_times[0] if set_times else None)
    for now in range(10):
        before, expected = len(journal.acted), journal.timers.next()
        journal.timers.tick(now)
        assert (len(journal.acted) > before) == (expected is not None and expected <= now)
    assert journal.timers.next() is None


def test_a_timer_that_is_stopped_or_moved_keeps_to_the_new_time() -> None:
    timers, acted = Timers(), []
    moved, stopped = timers.add(acted.append), timers.add(acted.append)
    moved.start(1)
    stopped.start(1)
    moved.start(5)
    stopped.stop()
    timers.tick(4)
    assert (acted, timers.next(), stopped.at()) == ([], 5, None)
    timers.tick(6)
    assert (acted, timers.next()) == ([6], None)


def test_an_action_may_start_its_own_timer_again_and_stop_those_behind_it() -> None:
    timers, acted = Timers(), []

    def act(now: float) -> None:
        acted.append(now)
        first.start(now + 10)
        second.stop()

    first, second = timers.add(act), timers.add(lambda _now: acted.append(-1))
    first.start(1)
    second.start(1)
    timers.tick(2)
    assert (acted, timers.next()) == ([2], 12)


def test_a_derived_time_is_asked_anew_each_time() -> None:
    timers, waiting = Timers(), [3, 5]
    timers.derive(lambda: min(waiting, default=None), lambda _now: waiting.remove(min(waiting)))
    assert timers.next() == 3
    timers.tick(2)
    timers.tick(3)
    assert (waiting, timers.next()) == ([5], 5)
    timers.tick(7)
    assert timers.next() is None
