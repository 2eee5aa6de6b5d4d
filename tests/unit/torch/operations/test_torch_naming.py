"""What is kept of names: the n-th use meets the n-th on the other ranks, and a name used once leaves nothing behind."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from byteps_like.errors import BytePSLikeError, MismatchError
from byteps_like.torch.job.naming import KEPT, Among, Call, Claim, NameTable


class Flight:
    """An operation that ends when it is told to."""

    def __init__(self, done: bool = True) -> None:
        self.over = done

    def done(self) -> bool:
        return self.over

    def wait(self, timeout: float | None = None) -> None:
        """Never called here."""
        raise AssertionError

    def give_up(self, error: BytePSLikeError) -> None:
        """Never called here."""
        raise AssertionError


class Rank:
    """A table, and the names under which data may still travel."""

    def __init__(self) -> None:
        self.table = NameTable()
        self.held: Counter[str] = Counter()

    def begin(self, name: str | None, says: str = "x", flight: Flight | None = None) -> Claim:
        claim = self.table.claim(Among(), Call("push_pull", name, says), self.forget)
        self.held[claim.name] = 1
        self.table.begun(claim, flight or Flight())  # type: ignore[arg-type]
        return claim

    def use(self, name: str | None, says: str = "x") -> str:
        claim = self.begin(name, says)
        self.table.release(claim)
        return claim.name

    def forget(self, name: str) -> None:
        assert self.held.pop(name), f"{name} was forgotten before"


def test_names_that_are_used_once_hold_nothing() -> None:
    rank = Rank()
    for number in range(1000):
        rank.use(f"loss.{number}")
    assert not rank.held
    assert not rank.table._points


def test_names_that_are_used_again_are_kept_from_the_second_use_on() -> None:
    rank = Rank()
    names = [rank.use("loss") for _ in range(5)]
    assert names[0] != names[1] == names[2] == names[3] == names[4]
    assert list(rank.held) == [names[1]]


def test_calls_without_a_name_are_kept_from_the_first_on() -> None:
    rank = Rank()
    first = [rank.use(None) for _ in range(32)]
    assert [rank.use(None) for _ in range(32)] == first


def test_all_ranks_use_the_same_names_in_whichever_order_they_come_and_end() -> None:
    ranks, uses = [Rank() for _ in range(3)], [(f"n{number % 40}", f"says {number % 11}") for number in range(2000)]
    travelled = []
    for seed, rank in enumerate(ranks):
        rng, found = random.Random(seed), {}
        counts: Counter[str] = Counter()
        waiting: list[Claim] = []
        todo = {name: [says for other, says in uses if other == name] for name, _ in uses}
        while todo:
            name = rng.choice(sorted(todo))
            for claim in [claim for claim in waiting if claim.point == name or rng.random() < 0.3]:
                waiting.remove(claim)
                rank.table.release(claim)
            claim = rank.begin(name, todo[name].pop(0))
            waiting.append(claim)
            found[name, counts[name]] = claim.name
            counts[name] += 1
            if not todo[name]:
                del todo[name]
        for claim in waiting:
            rank.table.release(claim)
        assert len(rank.held) <= 40 * KEPT
        travelled.append(found)
    assert travelled[0] == travelled[1] == travelled[2]


def test_a_name_stays_while_a_device_still_works_on_it() -> None:
    rank, flight = Rank(), Flight(done=False)
    claim = rank.begin("loss", flight=flight)
    rank.table.release(claim)  # only a stream waits
    rank.use("other")
    assert list(rank.held) == [claim.name]
    flight.over = True
    rank.use("another")
    assert not rank.held


def test_a_use_that_the_others_have_failed_in_fails_here_after_the_name_was_used_once() -> None:
    rank = Rank()
    rank.use("loss")
    rank.table.fail([("loss", 1)], MismatchError("they differ"))
    with pytest.raises(MismatchError, match="they differ"):
        rank.use("loss")
    assert rank.use("loss").endswith("@2")


def test_what_began_before_all_counts_begin_anew_is_forgotten_too() -> None:
    rank = Rank()
    rank.begin("loss")
    rank.table.begin_anew()
    assert not rank.held
    assert "~1" in rank.use("loss")
