"""How often a newcomer asks for the state before it joins without: worlds that end, and workers that say no."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

import byteps_like.torch as bps
from byteps_like.config import Config
from byteps_like.errors import CapacityError, PeerLostError, RefusedError
from byteps_like.torch.elastic.catching_up import arriving


@dataclass
class Following:
    """One that ends in a way, once it is near or can't be any more."""

    error: Exception | None = None
    made: int = 3
    closed: bool = False

    def wait_until_near(self) -> None:
        """Is there at once."""

    def close(self) -> None:
        self.closed = True


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

    def follow(self, *_: object) -> Any:
        self.asked += 1
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def status(self, _: Config) -> Status:
        return self.statuses.pop(0) if self.statuses else Status(epoch=self.asked + 1)


def lost() -> Following:
    return Following(PeerLostError("rank 1 died", peer="rank 1"))


@pytest.fixture
def come(monkeypatch: pytest.MonkeyPatch) -> Callable[[Workers], Any]:
    def come(workers: Workers) -> Any:
        monkeypatch.setattr(arriving, "follow", workers.follow)
        monkeypatch.setattr(arriving, "query_status", workers.status)
        monkeypatch.setattr(arriving, "_LOOK_SECONDS", 0.001)
        config = Config.from_env({}, failure_timeout=1.0, scheduler="127.0.0.1:1", secret="5" * 64)
        return arriving._followed(config, bps.elastic.ObjectState())

    return come


def test_it_asks_the_next_world_where_workers_are_lost(come: Callable[[Workers], Any]) -> None:
    ways = [lost(), lost(), Following()]
    workers = Workers([*ways], [Status(), Status("failed"), Status("forming"), Status(epoch=2)])
    assert come(workers) is ways[2]
    assert [one.closed for one in ways] == [True, True, False]


def test_it_asks_again_where_the_world_ends_before_its_workers_have_answered(come: Callable[[Workers], Any]) -> None:
    following = Following()
    statuses = [Status(), Status("forming"), Status(epoch=2)]
    assert come(Workers([RefusedError("the world has ended"), following], statuses)) is following


def test_it_joins_at_once_where_there_is_no_room(come: Callable[[Workers], Any]) -> None:
    workers = Workers([RefusedError("no room")], [Status(), Status()])
    assert come(workers) is None and workers.asked == 1


@pytest.mark.parametrize("outcome", [None, Following(CapacityError("given up")), Following(ValueError("a model's"))])
def test_it_joins_at_once_where_it_is_in_vain_to_ask_again(come: Callable[[Workers], Any], outcome: Any) -> None:
    workers = Workers([outcome])
    assert come(workers) is None and workers.asked == 1


def test_it_asks_only_so_often(come: Callable[[Workers], Any]) -> None:
    workers = Workers([lost() for _ in range(9)])
    assert come(workers) is None and workers.asked == arriving._ASKS


@pytest.mark.parametrize("state", ["forming", "ended"])
def test_it_joins_where_no_world_runs_that_it_might_be_missing_in(come: Callable[[Workers], Any], state: str) -> None:
    workers = Workers([lost()], [Status(), *[Status(state)] * 2000])
    assert come(workers) is None and workers.asked == 1
