"""A newcomer follows workers that train on, over real links: all in one process, each with a state of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import byteps_like.torch as bps
from byteps_like.config import Config
from byteps_like.errors import CorruptError, InvalidArgumentError, PeerLostError
from byteps_like.torch.elastic.catching_up import feed as feeds
from byteps_like.torch.elastic.catching_up import newcomer
from byteps_like.torch.elastic.catching_up.feed import Feed, HeldRecord
from byteps_like.torch.elastic.catching_up.followed import followed, is_reducing, kept
from byteps_like.torch.elastic.catching_up.messages import FeedingWorld, address_of, listening, seal_of
from byteps_like.torch.elastic.catching_up.newcomer import CatchingUp
from byteps_like.torch.elastic.catching_up.steps import before_steps
from byteps_like.torch.elastic.torch_state import handlers_of
from byteps_like.torch.job.trees import tensors_of
from tests.fakes.control.elastic_job import until

WORLD = 7


def config(transport: str = "auto", secret: str = "5", **settings: Any) -> Config:
    """ "tls": encrypted TCP."""
    ways: dict[str, Any] = {"transport": "tcp", "tls": "on"} if transport == "tls" else {"transport": transport}
    ways |= settings
    return Config.from_env({}, secret=secret * 64, host="127.0.0.1", scheduler="127.0.0.1:1", **ways)


class Trainee:
    """A model and its optimizer: all make the same steps, wherever they begin."""

    def __init__(self, seed: int, width: int = 300) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(torch.nn.Linear(7, width), torch.nn.Tanh(), torch.nn.Linear(width, 3))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.state = bps.elastic.TorchState(self.model, self.optimizer)

    def step(self, number: int) -> None:
        self.optimizer.zero_grad()
        generator = torch.Generator().manual_seed(number)
        self.model(torch.randn(4, 7, generator=generator)).square().sum().backward()
        self.optimizer.step()

    def bits(self) -> list[bytes]:
        found = {**self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        return [tensor.numpy().tobytes() for tensor in tensors_of(found)]


class Job:
    """Some workers, which all feed one newcomer."""

    def __init__(self, workers: int, transport: str = "auto", width: int = 300, **settings: Any) -> None:
        self.workers, self.newcomer = [Trainee(1, width) for _ in range(workers)], Trainee(2, width)
        self.step(0)
        communicators = [listening(config(transport, **settings)) for _ in range(workers + 1)]
        world = FeedingWorld.of(FeedingWorld(tuple(map(address_of, communicators))).text)
        groups = [world.entered(communicator, rank) for rank, communicator in enumerate(communicators[:-1])]
        self.feeds = [self._feed(*one, world) for one in zip(self.workers, communicators, groups, strict=False)]
        what = followed(self.newcomer.state)
        self.following = CatchingUp(communicators[-1], world, what, config(**settings))
        self.following.begin()
        self.following.make()

    def _feed(self, worker: Trainee, communicator: Any, group: Any, world: FeedingWorld, secret: str = "5") -> Feed:
        worker.state.save()
        what = followed(worker.state)
        seal = partial(seal_of, config(secret=secret), world.incarnation)
        feed = Feed(communicator, group, partial(is_reducing, what), "newcomer 1", seal)
        feed.begin(HeldRecord.of(kept(what), *feed.place))

        def put(record: Any) -> None:
            feed.put(HeldRecord.of({"optimizer": "optimizer", **record}, *feed.place))

        before_steps(worker.optimizer, put)
        return feed

    def step(self, number: int) -> None:
        for worker in self.workers:
            worker.step(number)

    def finish(self) -> None:
        """The next world has begun, with the newcomer."""
        for feed in self.feeds:
            feed.begin_world(WORLD)

    def close(self) -> None:
        for feed in self.feeds:
            feed.close()
        self.following.close()


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    bps.init()
    yield
    bps.shutdown()


@pytest.mark.parametrize("transport", ["auto", "tcp", "tls"])
@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_a_newcomer_has_the_bits_of_the_others(workers: int, transport: str) -> None:
    with closing(Job(workers, transport)) as job:
        for number in range(1, 20):
            job.step(number)
        job.following.wait_until_near()
        for number in range(20, 23):
            job.step(number)
        job.finish()
        assert job.following.wait_until_level(WORLD)
        assert job.following.made == 1 + 22
        assert job.newcomer.bits() == job.workers[0].bits()


def test_what_a_newcomer_gets_of_a_commit_takes_no_memory_of_models() -> None:
    """A rank keeps its own stripe, on the host, so the next commit needs no memory beside the last one's."""
    with closing(Job(2)) as job:
        handler = handlers_of(job.workers[0].state)["model"]
        job.following.wait_until_near()
        places = [tensor.data_ptr() for tensor in handler.saved.values()]  # type: ignore[attr-defined]
        job.step(1)
        handler.save()
        assert [tensor.data_ptr() for tensor in handler.saved.values()] == places  # type: ignore[attr-defined]
        job.finish()
        assert job.following.wait_until_level(WORLD)
        assert job.newcomer.bits() == job.workers[0].bits()


def test_a_newcomer_goes_on_though_others_join() -> None:
    """It is level in the world that it is in, not in one that has begun before."""
    with closing(Job(2)) as job:
        job.step(1)
        job.following.wait_until_near()
        for feed in job.feeds:
            feed.begin_world(WORLD - 2)
        job.step(2)
        job.finish()
        assert job.following.wait_until_level(WORLD) and job.following.wait_until_level(WORLD)
        assert job.following.made == 3
        assert job.newcomer.bits() == job.workers[0].bits()
        job.step(3)
        until(lambda: job.following.made == 4)
        job.following.close()
        until(lambda: all(feed.error for feed in job.feeds))


def test_a_worker_that_leaves_sends_the_little_that_a_newcomer_lacks() -> None:
    """Nobody else could."""
    with closing(Job(1)) as job:
        job.following.wait_until_near()
        job.step(1)
        job.feeds[0].begin_world(WORLD)
        job.feeds[0].leave(time.monotonic() + 30)
        assert job.following.wait_until_level(WORLD)
        assert job.newcomer.bits() == job.workers[0].bits()


def go_on(job: Job, steps: range) -> None:
    """The newcomer makes the same steps, and is level in the end."""
    for number in steps:
        job.step(number)
    job.following.wait_until_near()
    job.finish()
    assert job.following.wait_until_level(WORLD), job.following.error
    assert job.newcomer.bits() == job.workers[0].bits()


def test_where_a_worker_leaves_another_one_sends_its_part() -> None:
    with closing(Job(2)) as job:
        job.following.wait_until_near()
        job.step(1)
        job.feeds[1].leave(time.monotonic() + 30)
        go_on(job, range(2, 30))


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize(("workers", "lost"), [(2, [0]), (2, [1]), (3, [2]), (5, [4, 1])])
def test_where_a_worker_is_lost_another_one_sends_its_part(workers: int, lost: list[int], transport: str) -> None:
    with closing(Job(workers, transport)) as job:
        job.following.wait_until_near()
        for number, rank in enumerate(lost):
            job.step(number + 1)
            job.feeds[rank].close()
        go_on(job, range(len(lost) + 1, 40))


@given(st.integers(2, 4), st.integers(0, 3), st.floats(0, 0.03), st.booleans())
@settings(max_examples=40, deadline=None)
def test_whenever_a_worker_is_lost(workers: int, lost: int, after: float, is_slow: bool) -> None:
    """In the middle of the state, of a step, or between two; steps that it has put may not have come from it."""
    with closing(Job(workers, "tcp", width=20_000)) as job:
        if is_slow:
            make = job.following._make
            job.following._make = lambda record: (time.sleep(0.01), make(record))  # type: ignore[method-assign]
        end = threading.Timer(after, job.feeds[lost % workers].close)
        end.start()
        go_on(job, range(1, 12))
        end.join()


def test_where_the_last_worker_leaves_a_newcomer_hears_so() -> None:
    """Once it has made all that there was."""
    with closing(Job(1)) as job:
        job.following.wait_until_near()
        job.step(1)
        job.feeds[0].leave(time.monotonic() + 30)
        job.following.wait_until_weak()
        until(lambda: job.following.error is not None)
        assert isinstance(job.following.error, PeerLostError) and "has left" in str(job.following.error)
        assert job.following.made == 2 and job.newcomer.bits() == job.workers[0].bits()


def test_a_worker_that_falls_silent_is_lost() -> None:
    """Though its connection stands: its host may be gone."""
    with closing(Job(2, "tcp", failure_timeout=2.0)) as job:
        job.following.wait_until_near()
        silent = job.feeds[1]
        silent._send = lambda data: silent._over.wait()  # type: ignore[attr-defined, method-assign]
        silent._over = threading.Event()  # type: ignore[attr-defined]
        go_on(job, range(1, 20))
        assert job.following._senders == [0, 0]
        silent._over.set()  # type: ignore[attr-defined]


def test_a_newcomer_that_is_some_steps_behind_is_not_too_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has been sent doesn't count, though it may have to be sent again."""
    monkeypatch.setattr(feeds, "_LEAST_ROOM", 0)
    may_go_on, make = threading.Event(), newcomer.repeat
    monkeypatch.setattr(newcomer, "repeat", lambda *step: (may_go_on.wait(30), make(*step)))
    with closing(Job(2)) as job:
        job.following.wait_until_near()
        for number in range(1, newcomer.MOST_OPEN):
            job.step(number)
            until(lambda: all(feed._unsent <= 1 for feed in job.feeds))
        may_go_on.set()
        go_on(job, range(newcomer.MOST_OPEN, 12))


def test_where_two_are_lost_that_hold_the_same_the_newcomer_hears_so() -> None:
    for lost in ([0, 1], [1, 0], [2, 0]):
        with closing(Job(3)) as job:
            job.following.wait_until_near()
            for rank in lost:
                job.feeds[rank].close()
            until(lambda: job.following.error is not None)
            assert isinstance(job.following.error, PeerLostError) and "goodbye" in str(job.following.error)
            job.following.wait_until_near()
            job.finish()
            assert not job.following.wait_until_level(WORLD)


def test_a_newcomer_that_is_given_up_hears_so() -> None:
    with closing(Job(2)) as job:
        job.following.wait_until_near()
        job.feeds[0].give_up(InvalidArgumentError("a step can't be repeated"))
        job.feeds[1].give_up(InvalidArgumentError("a step can't be repeated"))
        until(lambda: job.following.error)
        assert isinstance(job.following.error, InvalidArgumentError), "and doesn't ask again"


def test_a_newcomer_is_near_though_nobody_makes_steps() -> None:
    with closing(Job(2)) as job:
        job.following.wait_until_near()
        assert job.following.error is None and job.following.made == 1
        job.finish()
        assert job.following.wait_until_level(WORLD)
        assert job.newcomer.bits() == job.workers[0].bits()


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_workers_may_pause_for_longer_than_a_round_may_wait(transport: str, caplog: pytest.LogCaptureFixture) -> None:
    """They evaluate their model, say: all of them live, and so does the newcomer."""
    with closing(Job(2, transport, failure_timeout=2.0, stall_timeout=4.0, stall_warning=1.0)) as job:
        job.step(1)
        job.following.wait_until_near()
        time.sleep(6.0)
        for number in range(2, 5):
            job.step(number)
        job.finish()
        assert job.following.wait_until_level(WORLD), job.following.error
        assert job.newcomer.bits() == job.workers[0].bits()
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_a_newcomer_takes_in_no_more_than_it_can_make(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has no room for waits at the workers, whose queues have a limit."""
    may_go_on, make = threading.Event(), newcomer.repeat
    monkeypatch.setattr(newcomer, "repeat", lambda *step: (may_go_on.wait(30), make(*step)))
    with closing(Job(2)) as job:
        for number in range(1, 40):
            job.step(number)
        until(lambda: job.following.made == 1)
        time.sleep(1.0)  # for what must not come in
        assert job.following.made == 1 and len(job.following._records) <= newcomer.MOST_OPEN
        may_go_on.set()
        job.finish()
        assert job.following.wait_until_level(WORLD) and job.following.made == 40
        assert job.newcomer.bits() == job.workers[0].bits()


def test_workers_go_on_without_a_newcomer_that_is_gone() -> None:
    with closing(Job(2)) as job:
        job.step(1)
        job.following.close()
        for number in range(2, 200):
            job.step(number)
            time.sleep(0.01)
            if all(feed.error for feed in job.feeds):
                break
        assert all("goodbye" in str(feed.error) for feed in job.feeds)
        job.finish()


def test_a_newcomer_makes_nothing_of_what_no_worker_has_sealed() -> None:
    job = Job.__new__(Job)
    job.workers, stranger = [Trainee(1)], Trainee(2)
    before = stranger.bits()
    communicators = [listening(config()), listening(config())]
    world = FeedingWorld(tuple(map(address_of, communicators)))
    group = world.entered(communicators[0], 0)
    job.feeds = [job._feed(job.workers[0], communicators[0], group, world, secret="6")]
    job.following = CatchingUp(communicators[1], world, followed(stranger.state), config())
    job.following.begin()
    job.following.make()
    with closing(job):
        job.following.wait_until_near()
        assert "is not what it has sent" in str(job.following.error)
    assert stranger.bits() == before


@pytest.fixture
def unheard(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Trainee, Feed]]:
    """A worker and its feed, to a newcomer that takes in nothing."""
    monkeypatch.setattr(feeds, "_LEAST_ROOM", 0)
    with ExitStack() as undo:
        job = Job.__new__(Job)
        worker = Trainee(1)
        job.workers = [worker]
        communicators = [listening(config()), listening(config())]
        world = FeedingWorld(tuple(map(address_of, communicators)))
        undo.callback(communicators[1].close)
        feed = job._feed(worker, communicators[0], world.entered(communicators[0], 0), world)
        undo.callback(feed.close)
        yield worker, feed


def test_a_newcomer_that_is_too_slow_is_given_up(unheard: tuple[Trainee, Feed]) -> None:
    """Steps wait for it up to as many bytes as the state has."""
    worker, feed = unheard
    for number in range(1, 6):
        worker.step(number)
    assert "it takes in steps more slowly than they are made" in str(feed.error)
    before = worker.bits()
    worker.step(6)
    assert worker.bits() != before


def test_a_worker_that_leaves_does_not_wait_for_a_newcomer_that_lacks_much(unheard: tuple[Trainee, Feed]) -> None:
    worker, feed = unheard
    worker.step(1)
    began = time.monotonic()
    feed.leave(began + 30)
    assert time.monotonic() - began < 5


def test_of_what_is_received_nothing_makes_sense_but_what_was_sent() -> None:
    for text in ("", "[1]", "{", '{"a": 1}'):
        with pytest.raises(CorruptError):
            FeedingWorld.of(text).entered(None, 0)
