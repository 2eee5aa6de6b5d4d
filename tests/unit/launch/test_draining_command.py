"""`byteps-like worker drain` as it waits: what it says, and how it ends."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from byteps_like.cli import draining
from byteps_like.config import Config
from byteps_like.control.calls import client
from byteps_like.control.members.drains import DrainOrder, DrainProgress, DrainState
from byteps_like.control.types import MemberRole
from byteps_like.errors import DeadlineError, PeerLostError

ORDER = DrainOrder(MemberRole.WORKER, 2)
ASKED = DrainProgress(DrainState.ASKED, 7, "worker 2 (host a, pid 9)")


class Scheduler:
    """Answers as it is told to; None: it is away. The last answer lasts."""

    def __init__(self, *answers: DrainProgress | None) -> None:
        self.answers: Iterator[DrainProgress | None] = iter(answers)
        self.last: DrainProgress | None = None
        self.orders: list[DrainOrder] = []

    def __call__(self, _: Config, order: DrainOrder) -> DrainProgress:
        self.orders.append(order)
        self.last = next(self.answers, self.last)
        if self.last is None:
            raise PeerLostError("no scheduler at a:1", peer="scheduler")
        return self.last


def drain(monkeypatch: pytest.MonkeyPatch, scheduler: Scheduler, timeout: float = 60.0) -> int:
    """The command's exit code."""
    monkeypatch.setattr(client, "order_drain", scheduler)
    monkeypatch.setattr(draining, "_ASK_SECONDS", 0.0)
    return draining.drain(Config(), ORDER, timeout)


def test_it_names_the_member_by_its_number_once_it_is_known(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    forming, left = DrainProgress(DrainState.FORMING), DrainProgress(DrainState.LEFT, 7, "worker 1 (host a, pid 9)")
    scheduler = Scheduler(forming, ASKED, None, ASKED, left)
    assert drain(monkeypatch, scheduler) == 0
    assert [order.number for order in scheduler.orders] == [0, 0, 7, 7, 7]
    asked, gone = capsys.readouterr().out.splitlines()
    assert asked == "worker 2 (host a, pid 9) is to leave at its next commit()"
    assert gone.startswith("worker 1 (host a, pid 9) has left, 0.")


@pytest.mark.parametrize(
    ("last", "text"),
    [(DrainProgress(DrainState.LOST, 7, "worker 2"), "worker 2 died after"), (None, "no scheduler at a:1")],
)
def test_who_has_not_left_in_order_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], last: DrainProgress | None, text: str
) -> None:
    monkeypatch.setattr(draining, "_ABSENCE_SECONDS", 0.05)
    assert drain(monkeypatch, Scheduler(ASKED, last)) == 1
    assert text in capsys.readouterr().err


def test_it_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(draining, "_MENTION_SECONDS", 0.05)
    began = time.monotonic()
    with pytest.raises(DeadlineError, match=r"worker 2 to leave at its next commit\(\), in vain .*; it has been asked"):
        drain(monkeypatch, Scheduler(ASKED), 0.2)
    with pytest.raises(DeadlineError, match=r"a world to form that it can leave, in vain for .*; nobody was asked"):
        drain(monkeypatch, Scheduler(DrainProgress(DrainState.FORMING)), 0.1)
    busy = DrainProgress(DrainState.BUSY, who="server 4 (host a, pid 9)")
    with pytest.raises(
        DeadlineError, match=r"waited for server 4 \(.*\) to hand over what it keeps, .*nobody was asked"
    ):
        drain(monkeypatch, Scheduler(busy), 0.1)
    assert time.monotonic() - began < 30
    assert "waiting for worker 2 to leave at its next commit() (0 s)" in capsys.readouterr().out


def test_no_scheduler_at_the_beginning_is_said_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scheduler = Scheduler(None)
    assert drain(monkeypatch, scheduler) == 1 and len(scheduler.orders) == 1
    assert capsys.readouterr().err == "byteps-like: no scheduler at a:1\n"
