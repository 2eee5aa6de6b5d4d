"""Worlds that end before they have begun, since a member dies as they form: whoever is to be in one joins another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest

import byteps_like.torch as bps
from byteps_like.config import Config
from byteps_like.control.calls.returning import is_returning
from byteps_like.torch.elastic.rejoining import rejoin
from byteps_like.torch.job import membership
from byteps_like.torch.job import runtime as _runtime
from byteps_like.torch.job.runtime import Pending
from byteps_like.worker.local import LocalWorker
from byteps_like.worker.standing import Standing

ALONE = Standing(1, (1,), 0, 1)


class Worlds:
    """In which an elastic job's members would be."""

    def __init__(self) -> None:
        self.losses = 0
        """How many of them end early."""
        self.lost = "worker 1"
        self.joined = 0

    def connect(self, config: Config, seat: object, waits: bool) -> LocalWorker:
        self.joined += 1
        assert is_returning() == config.elastic, "those that are left don't wait for it in vain"
        if self.joined <= self.losses:
            raise bps.PeerLostError(f"{self.lost} died", peer=self.lost)
        return LocalWorker()


@pytest.fixture
def worlds(monkeypatch: pytest.MonkeyPatch) -> Iterator[Worlds]:
    found = Worlds()
    monkeypatch.setattr(membership, "_connect", found.connect)
    monkeypatch.setattr(membership, "place_beside", lambda config: None)
    yield found
    bps.shutdown()


def config(elastic: bool = True) -> Config:
    return Config.from_env({}, elastic=elastic, scheduler="127.0.0.1:1", secret="5" * 64)


def first() -> None:
    bps.init(config=config())


def pending() -> None:
    _runtime.postpone(Pending(config(), ALONE, membership._join_pending))
    bps.barrier()


def again() -> None:
    rejoin(lambda: None)


@pytest.mark.parametrize("losses", [1, 7, 100])
@pytest.mark.parametrize("come", [first, pending, again])
def test_another_world_follows(worlds: Worlds, come: Callable[[], None], losses: int) -> None:
    if come is again:
        first()
    worlds.losses, worlds.joined = losses, 0
    with pytest.raises(bps.PeerLostError, match="worker 1") if losses == 100 else nullcontext():
        come()
    assert worlds.joined == min(losses + 1, 8)


@pytest.mark.parametrize("come", [first, pending])
def test_a_scheduler_that_is_lost_is_not_waited_for_again_and_again(worlds: Worlds, come: Callable[[], None]) -> None:
    worlds.losses, worlds.lost = 100, "scheduler"
    with pytest.raises(bps.PeerLostError, match="scheduler died"):
        come()
    assert worlds.joined == 1


def test_in_a_job_of_a_fixed_size_it_is_an_error(worlds: Worlds) -> None:
    worlds.losses = 1
    with pytest.raises(bps.PeerLostError, match="worker 1 died"):
        bps.init(config=config(elastic=False))
    assert worlds.joined == 1
