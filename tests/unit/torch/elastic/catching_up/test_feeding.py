"""Which newcomers the ranks of a world deal with, where they have not heard of the same ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

import byteps_like.torch as bps
from byteps_like.config import Config
from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.elastic.catching_up import feeding
from byteps_like.torch.elastic.catching_up.feeding import Feeding
from byteps_like.torch.elastic.catching_up.messages import FeedingWorld, address_of, listening
from byteps_like.worker.api import Newcomer


def test_nobody_listens_to_steps_once_no_newcomer_is_fed_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    bps.init()
    parameter = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=0.5)
    own = Feeding(bps.elastic.TorchState(None, optimizer))
    settings = Config.from_env({}, secret="5" * 64, host="127.0.0.1", scheduler="127.0.0.1:1")
    monkeypatch.setattr(feeding._runtime, "settings", lambda: settings)
    communicators = [listening(settings) for _ in range(3)]
    try:
        worlds = [FeedingWorld((address_of(one), address_of(communicators[-1]))) for one in communicators[:-1]]
        feeds = [own._feed("one", *each) for each in zip(worlds, communicators, strict=False)]
        for feed in feeds:
            assert len(optimizer._optimizer_step_pre_hooks) == 1
            feed.give_up(InvalidArgumentError("it can't be fed"))
            parameter.sum().backward()
            optimizer.step()
            own.begin(0)
        assert not optimizer._optimizer_step_pre_hooks
    finally:
        own.close()
        for one in communicators:
            one.close()
        bps.shutdown()


class Ranks:
    """Of one world, each with what it has heard; all come to each commit."""

    def __init__(self, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.heard: list[list[int]] = [[] for _ in range(count)]
        self.welcomed: list[list[int]] = [[] for _ in range(count)]
        self.exchanges = 0
        self._now = 0
        self._feedings = [Feeding(bps.elastic.ObjectState()) for _ in range(count)]
        monkeypatch.setattr(feeding, "allgather_object", self._exchange)
        monkeypatch.setattr(Feeding, "_newcomers", lambda _: tuple(Newcomer(n, "") for n in self.heard[self._now]))
        monkeypatch.setattr(Feeding, "_welcome", lambda _, one, __: self.welcomed[self._now].append(one.number))

    def _exchange(self, own: set[int]) -> list[set[int]]:
        assert own == set(self.heard[self._now])
        self.exchanges += 1
        return [set(one) for one in self.heard]

    def hear(self, *told: Sequence[int]) -> None:
        for rank, numbers in enumerate(told):
            self.heard[rank].extend(numbers)

    def commit(self) -> None:
        newest = min(self._each(lambda one: one.heard))
        self.exchanges = 0
        self._each(lambda one: one.begin(newest))
        assert self.exchanges in (0, len(self.heard)), "all ranks exchange, or none"
        assert all(one == self.welcomed[0] for one in self.welcomed), "all ranks welcome the same, in one order"

    def end(self) -> None:
        self._each(lambda one: one.end(in_order=True, leaves=False))

    def _each(self, call: Any) -> list[Any]:
        found = []
        for self._now, one in enumerate(self._feedings):  # noqa: B020 - what is called looks there
            found.append(call(one))
        return found


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Ranks:
    return Ranks(3, monkeypatch)


def test_a_newcomer_is_welcome_once_all_have_heard_of_it(ranks: Ranks) -> None:
    ranks.commit()
    ranks.hear([5], [], [5])
    ranks.commit()
    assert ranks.welcomed[0] == [] and ranks.exchanges == 0
    ranks.hear([6], [5], [])
    ranks.commit()
    assert ranks.welcomed[0] == [5]
    ranks.hear([], [6], [6])
    ranks.commit()
    ranks.commit()
    assert ranks.welcomed[0] == [5, 6] and ranks.exchanges == 0


def test_of_whom_some_have_not_heard_nobody_takes_notice(ranks: Ranks) -> None:
    """A scheduler has died before it could tell all, and another one tells of others."""
    ranks.hear([5, 9], [5, 8, 9], [8, 9])
    ranks.commit()
    assert ranks.welcomed[0] == [9]
    ranks.hear([11], [10, 12], [10, 11])
    ranks.commit()
    assert ranks.welcomed[0] == [9]


def test_in_another_world_all_begins_anew(ranks: Ranks) -> None:
    bps.init()
    try:
        ranks.hear([7], [7], [7])
        ranks.commit()
        ranks.end()
        ranks.heard = [[], [], []]
        ranks.hear([8], [8], [8])
        ranks.commit()
    finally:
        bps.shutdown()
    assert ranks.welcomed[0] == [7, 8]
