"""How often a newcomer asks for the state before it joins without, and while it waits: worlds that end, workers that
say no, and a place that it gets meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import byteps_like.torch as bps
from byteps_like.config import Config
from byteps_like.errors import CapacityError, InvalidArgumentError, PeerLostError, RefusedError, StalledError
from byteps_like.torch.elastic.catching_up import pursuit
from byteps_like.torch.elastic.catching_up.pursuit import Pursuit
from tests.fakes.control.elastic_job import PATIENCE, until


class Following:
    """One that has the state at once and is near, until it is lost."""

    def __init__(self, error: Exception | None = None, made: int = 3, has_state: bool = True) -> None:
        self.error, self.made = error, made
        self.begun = self.makes = self.closed = self.is_weak = False
        self._has_state = threading.Event()
        self._changed = threading.Event()
        if has_state:
            self._has_state.set()
        if error is not None:
            self.lose(error)

    def begin(self) -> None:
        self.begun = True

    def come(self) -> None:
        """Its state has."""
        self._has_state.set()

    def wait_until_state(self) -> bool:
        return self._has_state.wait(PATIENCE) and self.error is None

    def make(self) -> None:
        self.makes = True

    def wait_until_near(self) -> None:
        """Is there at once."""

    def wait_until_level(self, world: int) -> bool:
        return self.error is None and world == 5

    def wait_until_weak(self) -> None:
        self._changed.wait(PATIENCE)

    def weaken(self) -> None:
        """One of the senders is lost."""
        self._changed.set()

    def lose(self, error: Exception) -> None:
        self.error = self.error or error
        self._changed.set()
        self._has_state.set()

    def close(self) -> None:
        self.closed = True
        self.lose(RuntimeError("closed"))


class Stuck(Following):
    """It is in the middle of a step that does not end."""

    def close(self) -> None:
        super().close()
        raise StalledError("a step has not ended")


@dataclass
class Status:
    state: str = "running"
    epoch: int = 1


@dataclass
class Workers:
    """What becomes of each time that they are asked, and how the job stands then."""

    outcomes: list[Any]
    statuses: list[Status] = field(default_factory=list)
    asked: int = 0

    def find(self, *_: object) -> Any:
        self.asked += 1
        outcome = self.outcomes.pop(0) if self.outcomes else None
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def status(self, _: Config) -> Status:
        return self.statuses.pop(0) if self.statuses else Status(epoch=self.asked + 1)


def lost() -> Following:
    return Following(PeerLostError("rank 1 died", peer="rank 1"))


Begin = Callable[..., Pursuit]


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Begin]:
    begun = []

    def begin(workers: Workers, model: Any = None) -> Pursuit:
        monkeypatch.setattr(pursuit, "find", workers.find)
        monkeypatch.setattr(pursuit, "query_status", workers.status)
        config = Config.from_env({}, failure_timeout=1.0, scheduler="127.0.0.1:1", secret="5" * 64)
        begun.append(Pursuit(config, bps.elastic.TorchState(model or torch.nn.Linear(2, 2))))
        return begun[-1]

    monkeypatch.setattr(pursuit, "_LOOK_SECONDS", 0.001)
    monkeypatch.setattr(pursuit, "_REST_SECONDS", 0.001)
    monkeypatch.setattr(pursuit, "_PAUSE_SECONDS", 0.001)
    bps.init()
    yield begin
    for one in begun:
        one.close()
        one._thread.join(PATIENCE)
        assert not one._thread.is_alive()
    bps.shutdown()


def near(pursued: Pursuit) -> Following | None:
    """Whom it follows once it is near, or can't be."""
    pursued.wait_until_near()
    following: Any = pursued._following
    return None if following is None or following.error is not None else following


def test_it_asks_the_next_world_where_workers_are_lost(begin: Begin) -> None:
    ways = [lost(), lost(), Following()]
    workers = Workers([*ways], [Status(), Status("failed"), Status("forming"), Status(epoch=2)])
    assert near(begin(workers)) is ways[2]
    assert [one.closed for one in ways] == [True, True, False]


def test_it_asks_again_where_the_world_ends_before_its_workers_have_answered(begin: Begin) -> None:
    following = Following()
    statuses = [Status(), Status("forming"), Status(epoch=2)]
    assert near(begin(Workers([RefusedError("the world has ended"), following], statuses))) is following


@pytest.mark.parametrize("refusal", [RefusedError("too many are fed"), None])
def test_it_joins_at_once_where_nobody_feeds_it_but_asks_on(begin: Begin, refusal: Any) -> None:
    later, free = Following(), threading.Event()
    workers = Workers([refusal, refusal, refusal], [Status()] * 7)
    answer = workers.find
    workers.find = lambda *_: answer() if not free.is_set() else later  # type: ignore[method-assign]
    pursued = begin(workers)
    assert near(pursued) is None
    free.set()
    until(lambda: later.makes)
    assert pursued.wait_until_level(5) == 3 and not later.closed


@pytest.mark.parametrize("error", [InvalidArgumentError("steps can't be made again"), ValueError("of a model")])
def test_it_joins_at_once_where_it_is_in_vain_to_ask_again(
    begin: Begin, error: Exception
) -> None:  # fmt: skip
    outcome = Following(error)
    workers = Workers([outcome])
    pursued = begin(workers)
    assert near(pursued) is None and outcome.closed
    pursued._thread.join(PATIENCE)
    assert workers.asked == 1 and not pursued.wait_until_level(5)


def test_one_that_is_too_slow_joins_at_once_but_tries_again(begin: Begin) -> None:
    later = Following()
    pursued = begin(Workers([Following(CapacityError("too slow")), later]))
    pursued.wait_until_near()
    until(lambda: later.makes)
    assert pursued.has_made and pursued.wait_until_level(5) == 3


def test_it_joins_after_some_worlds_but_asks_on(begin: Begin) -> None:
    last = Following()
    workers = Workers([*(lost() for _ in range(9)), last])
    pursued = begin(workers)
    pursued.wait_until_near()
    assert workers.asked >= pursuit._ASKS
    until(lambda: last.makes)
    assert pursued._following is last and workers.asked == 10  # type: ignore[comparison-overlap]


@pytest.mark.parametrize("state", ["forming", "ended"])
def test_it_joins_where_no_world_runs_that_it_might_be_missing_in(begin: Begin, state: str) -> None:
    workers = Workers([lost()], [Status(), *[Status(state)] * 20000])
    assert near(begin(workers)) is None and workers.asked == 1


def test_a_spare_that_loses_the_workers_follows_those_of_the_next_world(begin: Begin) -> None:
    first, second = Following(), Following(made=8)
    pursued = begin(Workers([first, second]))
    assert near(pursued) is first
    first.lose(PeerLostError("rank 1 died", peer="rank 1"))
    until(lambda: second.makes)
    assert first.closed and pursued.wait_until_level(5) == 8


def test_once_it_has_its_place_it_follows_nobody_else(begin: Begin) -> None:
    first, late = Following(), Following()
    asked, answer = threading.Event(), threading.Event()
    workers = Workers([first])
    pursued = begin(workers)
    assert near(pursued) is first

    def find(*_: object) -> Following:
        asked.set()
        answer.wait(PATIENCE)
        return late

    with closing(pursued):
        pursuit.find = find  # type: ignore[assignment]  # the fixture puts it back
        first.lose(PeerLostError("rank 1 died", peer="rank 1"))
        assert asked.wait(PATIENCE)
        assert not pursued.wait_until_level(5)
        answer.set()
        until(lambda: late.closed)
        assert not late.begun
        assert not late.makes, "the model is in use"


def test_it_follows_who_is_left_until_the_state_of_all_has_come(begin: Begin) -> None:
    """So it is never without, though it is fed anew where one more loss would end it."""
    first, second = Following(), Following(made=8, has_state=False)
    pursued = begin(Workers([first, second]))
    assert near(pursued) is first
    first.weaken()
    until(lambda: second.begun)
    assert not first.closed and not second.makes and pursued._following is first  # type: ignore[comparison-overlap]
    second.come()
    until(lambda: second.makes)
    assert first.closed and pursued.wait_until_level(5) == 8


def test_it_has_what_is_left_where_its_turn_comes_before_the_state(begin: Begin) -> None:
    first, second = Following(), Following(has_state=False)
    pursued = begin(Workers([first, second]))
    assert near(pursued) is first
    first.weaken()
    until(lambda: second.begun)
    assert pursued.wait_until_level(5) == 3
    assert second.closed and not second.makes and not first.closed


def test_nobody_makes_steps_beside_one_that_does_not_end(begin: Begin) -> None:
    stuck, other = Stuck(), Following()
    pursued = begin(Workers([stuck, other]))
    pursued.wait_until_near()
    stuck.weaken()
    pursued._thread.join(PATIENCE)
    assert other.closed and not other.makes
    with pytest.raises(StalledError):
        pursued.close()
    pursued._following = None  # for the end of the test


def test_a_state_that_nobody_can_follow(begin: Begin) -> None:
    workers = Workers([Following()])
    config = Config.from_env({}, scheduler="127.0.0.1:1", secret="5" * 64)
    begin(workers)
    other = Pursuit(config, bps.elastic.ObjectState(step=0))
    other.wait_until_near()
    assert not other.wait_until_level(5)
