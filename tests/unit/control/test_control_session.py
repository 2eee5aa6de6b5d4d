"""When a member says that it lives, and how long it waits for a scheduler out of reach, on a clock of the tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace

import pytest

from byteps_like.config import Config
from byteps_like.control.calls import session, wire
from byteps_like.control.calls.rpc import UnreachableError
from byteps_like.control.calls.session import Session
from byteps_like.control.members.seats import JoinClaim
from byteps_like.control.types import EventKind, Member, MemberRole, View, WatchEvent
from byteps_like.errors import PeerLostError


class Slept:
    """The pauses of a session, which take no time, and its clock, which they move; `until` ends it."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, one: Session, until: Callable[[], bool] = lambda: False
    ) -> None:
        self.pauses: list[float] = []
        self.now = 100.0
        self._one, self._until = one, until
        monkeypatch.setattr(session, "asyncio", SimpleNamespace(sleep=self.sleep))
        monkeypatch.setattr(session, "_now", lambda: self.now)

    async def sleep(self, seconds: float) -> None:
        """Moves the clock."""
        self.pauses.append(seconds)
        self.now += seconds
        self._one.closed = self._until()


def a_session(events: list[WatchEvent], follows: str = "", **settings: float) -> Session:
    """Of worker 0 of a world that has not formed."""
    claim = JoinClaim("w0", Member(MemberRole.WORKER, 0, "boot", "here", 1), 2, 0, {}, 1.0, follows)
    config = Config(job="session", scheduler="127.0.0.1:1", **settings)  # type: ignore[arg-type]
    return Session(config, b"s" * 32, claim, events.append, dict)


@pytest.mark.parametrize(("workers", "pause"), [(8, 1.0), (1000, 5.0)])
def test_a_member_says_less_often_that_it_lives_the_more_there_are(
    monkeypatch: pytest.MonkeyPatch, workers: int, pause: float
) -> None:
    one = a_session([])
    members = tuple(Member(MemberRole.WORKER, rank, "boot", "here", 1) for rank in range(workers))
    message = wire.to_watch(View("session", 1, members, ()), [f"w{rank}" for rank in range(workers)])
    one._take_view(message.world)
    said: list[str] = []

    async def post(name: str, request: object) -> None:
        said.append(name)

    monkeypatch.setattr(one, "post", post)
    slept = Slept(monkeypatch, one, lambda: len(said) == 3)
    asyncio.run(one._heartbeat())
    assert said[:3] == ["Heartbeat"] * 3
    assert set(slept.pauses) == {pause}


@pytest.mark.parametrize(("grace", "patience"), [(0.1, 1.0), (0.7, 1.05), (4.0, 6.0)])
def test_a_scheduler_may_be_out_of_reach_for_half_as_long_again_as_a_member(
    monkeypatch: pytest.MonkeyPatch, grace: float, patience: float
) -> None:
    events: list[WatchEvent] = []
    one = a_session(events, peer_grace=grace)
    slept = Slept(monkeypatch, one)

    async def read_stream() -> None:
        """A stream that breaks at once, at first after it was open each time."""
        if slept.now < 110.0:
            one._on_open()
        raise UnreachableError("connection reset")

    monkeypatch.setattr(one, "_read_stream", read_stream)
    asyncio.run(one._watch())
    (event,) = events
    assert isinstance(event.error, PeerLostError) and "died or can't be reached any more" in event.text
    assert patience <= slept.now - 110.0 <= patience + 0.2


def test_a_scheduler_that_no_longer_knows_the_member_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[WatchEvent] = []
    one = a_session(events)
    slept = Slept(monkeypatch, one)

    async def stream(name: str, request: object, on_open: object) -> AsyncIterator[object]:
        raise PeerLostError("not a member")
        yield

    monkeypatch.setattr(one, "_caller", SimpleNamespace(stream=stream), raising=False)
    asyncio.run(one._watch())
    (event,) = events
    assert "no longer knows this member: not a member" in event.text and slept.pauses == []


@pytest.mark.parametrize(("epoch", "known"), [(2, "w0"), (0, "before")])
def test_who_was_in_a_world_that_ended_before_it_began_is_known_by_its_place_there(epoch: int, known: str) -> None:
    """So it keeps its rank. A failure of no world is of a member that has not been in one."""
    events: list[WatchEvent] = []
    one = a_session(events, follows="before")
    assert one.known_as == "before"
    lost = PeerLostError("server 1 died", peer="server 1")
    one._take_event(WatchEvent(EventKind.FAILED, str(lost), lost, epoch=epoch))
    assert one.known_as == known and one.error is lost
