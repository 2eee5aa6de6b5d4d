"""A key's ledger: what it refuses, what a loss and a newcomer do, and when a partial round waits a little longer."""

from __future__ import annotations

import pytest

from byteps_like.errors import CorruptError
from byteps_like.store.ledger import Event, Late, Ledger, Version
from byteps_like.store.policies.policy import Contribution
from byteps_like.store.policies.registry import policy_of


def ledger(text: str, ranks: int = 3) -> Ledger:
    return Ledger(policy_of(text, ranks), range(ranks))


def push(to: Ledger, source: int, now: float = 0.0, base: int | None = None) -> list[Event]:
    """The next of `source`."""
    return to.push(Contribution(source, to.clock(source), to.version if base is None else base), now)


def sources(event: Event) -> list[int]:
    assert isinstance(event, Version)
    return [one.source for one in event.pushes]


def test_a_repeated_push_changes_nothing_however_far_the_first_has_got() -> None:
    key = ledger("bsp", 2)
    first = Contribution(0, 0, 0)
    assert key.push(first, 0.0) == key.push(first, 1.0) == []
    assert sources(push(key, 1)[0]) == [0, 1]
    assert key.push(first, 2.0) == []
    assert (key.version, key.clocks) == (1, {0: 1, 1: 1})


def test_a_push_after_one_that_is_missing_is_refused_by_name() -> None:
    key = ledger("asp")
    with pytest.raises(CorruptError, match=r"rank 2 has pushed its contribution 1, .* after 0 of its own"):
        key.push(Contribution(2, 1, 0), 0.0)
    with pytest.raises(CorruptError, match="computed on version 1, after 0 of its own, and 0 versions"):
        key.push(Contribution(2, 0, 1), 0.0)
    assert not key.version


def test_a_version_waits_no_longer_for_who_has_left_and_keeps_what_it_had_pushed() -> None:
    key = ledger("bsp")
    push(key, 0), push(key, 1)
    assert key.lose(1, 1.0) == []
    assert [sources(one) for one in key.lose(2, 2.0)] == [[0, 1]]
    assert key.clocks == {0: 1}


def test_a_newcomer_begins_where_the_slowest_is() -> None:
    key = ledger("ssp:s=1")
    for source in (0, 0, 1, 2, 0):
        push(key, source)
    assert (key.join(7), key.clock(7)) == (1, 1)
    assert not key.may_read(0)
    key.lose(1, 0.0), key.lose(2, 0.0), push(key, 7)
    assert key.may_read(0)


def test_late_pushes_are_dropped_or_go_into_the_next_version_up_to_an_age() -> None:
    dropped, kept = ledger("backup:b=1"), ledger("k_of_n:k=2,late=next,max_age=1")
    for key in (dropped, kept):
        push(key, 0), push(key, 1)
    assert push(dropped, 2, base=0) == [Late(Contribution(2, 0, 0))]
    assert push(kept, 2, base=0) == [] and kept.may_read(2)
    (made,) = push(kept, 0)
    assert sources(made) == [2, 0]
    assert isinstance(made, Version) and [made.age(one) for one in made.pushes] == [1, 0]
    assert push(kept, 1, base=0) == [Late(Contribution(1, 1, 0))]


def test_within_the_grace_more_may_come() -> None:
    key = ledger("k_of_n:k=1,grace=0.5")
    assert push(key, 0, 1.0) == push(key, 1, 1.4) == key.pass_time(1.49) == []
    assert [sources(one) for one in key.pass_time(1.5)] == [[0, 1]]


@pytest.mark.parametrize(("interval", "waits"), [(0.9, True), (1.1, False)])
def test_grace_by_itself_waits_while_one_more_raises_the_contributions_per_second(interval: float, waits: bool) -> None:
    key = ledger("k_of_n:k=2,grace=auto", 4)
    key.gap = interval
    key.open.since, key.open.finished = 0.0, {0: 1.9, 1: 2.0}  # 2 in 2 s: a third within 1 s is worth it
    key.open.pushes = [Contribution(source, 0, 0) for source in (0, 1)]
    assert bool(key.pass_time(2.0)) != waits
    assert key.version == 1 or (key.pass_time(2.99) == [] and len(key.pass_time(3.0)) == 1)


def block(to: Ledger, source: int, now: float = 0.0, last: bool = False) -> list[Event]:
    """The next of `source`, computed on version 0."""
    return to.push(Contribution(source, to.clock(source), 0, last=last), now)


def test_who_is_behind_is_cut_off_once_enough_have_finished_and_its_blocks_are_in_two_versions() -> None:
    key = ledger("k_of_n:k=2,grace=0.5,late=next")
    block(key, 0, 1.0, last=True)
    assert key.cut_off() == []
    block(key, 1, 1.1, last=True)
    assert key.cut_off() == [2]
    (made,) = block(key, 2, 1.2)  # then nobody else is waited for
    assert sources(made) == [0, 1, 2] and key.cut_off() == []
    push(key, 0, 2.0)
    (made,) = push(key, 1, 2.1)  # nor is who brings the rest later
    assert sources(made) == [0, 1] and key.cut_off() == []
    block(key, 2, 2.2, last=True)
    assert push(key, 0, 3.0) == [] and key.cut_off() == [1]
    assert [sources(one) for one in key.pass_time(3.5)] == [[2, 0]]


def test_a_block_that_came_too_late_does_not_count_as_one_that_has_finished() -> None:
    key = ledger("k_of_n:k=2,late=next")
    push(key, 0), push(key, 1), block(key, 2)
    assert push(key, 0) == [] and key.version == 1
    (made,) = block(key, 2, last=True)
    assert sources(made) == [2, 0, 2]


def test_under_bsp_a_version_has_all_blocks_of_all() -> None:
    key = ledger("bsp", 2)
    block(key, 0), push(key, 1), block(key, 0)
    assert not key.version
    (made,) = block(key, 0, last=True)
    assert sources(made) == [0, 1, 0, 0]
