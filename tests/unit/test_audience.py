"""Who comes later than what it is to be told."""

from __future__ import annotations

import threading

from byteps_like.control.audience import Audience

Heard = list[int]


def test_all_who_are_there_are_told_in_order() -> None:
    audience, one, other = Audience[Heard](), Heard(), Heard()
    audience.join(one)
    audience.tell(lambda who: who.append(1))
    audience.join(other)
    audience.tell(lambda who: who.append(2))
    assert (one, other) == ([1, 2], [2])


def test_the_first_is_told_what_was_before() -> None:
    """A rank whose runtime is not made yet, when the others disagree with what it is about to call."""
    audience, one, other = Audience[Heard](), Heard(), Heard()
    audience.tell(lambda who: who.append(1))
    audience.tell(lambda who: who.append(2))
    audience.join(one)
    audience.join(other)
    audience.tell(lambda who: who.append(3))
    assert (one, other) == ([1, 2, 3], [3])


def test_nobody_is_told_after_the_end() -> None:
    audience, one = Audience[Heard](), Heard()
    audience.join(one)
    audience.leave()
    audience.tell(lambda who: who.append(1))
    assert one == []


def test_nothing_is_missed_or_told_twice_or_out_of_order() -> None:
    for _ in range(50):
        audience, one = Audience[Heard](), Heard()

        def tell(audience: Audience[Heard] = audience) -> None:
            for number in range(200):
                audience.tell(lambda who, number=number: who.append(number))  # type: ignore[misc]

        thread = threading.Thread(target=tell)
        thread.start()
        audience.join(one)
        thread.join()
        assert one == list(range(200))
