"""What `byteps-like server drain` and `worker drain` do: ask the scheduler, and wait until the member has left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from byteps_like.config import Config
from byteps_like.control.types import MemberRole
from byteps_like.errors import DeadlineError, PeerLostError

if TYPE_CHECKING:
    from byteps_like.control.members.drains import DrainOrder, DrainProgress

_ASK_SECONDS = 0.1
_MENTION_SECONDS = 5.0
_ABSENCE_SECONDS = 10.0
"""For which a scheduler may be away that has answered before: another one may take its place."""

Ask = Callable[["DrainOrder"], "DrainProgress"]

Rank = Annotated[int, typer.Argument(metavar="N", min=0, help="Its rank, as byteps-like status shows it.")]
Scheduler = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Address of the job's scheduler.")]
JobName = Annotated[str | None, typer.Option(help="Name of the job.")]
Tls = Annotated[bool, typer.Option("--tls", help="The job runs with --tls.")]
Replace = Annotated[bool, typer.Option("--replace", help="Let byteps-like run start another one in its place.")]
Timeout = Annotated[float, typer.Option(min=0.1, help="Seconds within which it must have left.")]


def drain(config: Config, order: DrainOrder, timeout: float) -> int:
    """Says what happens, in a line each, until the member has left; the command's exit code: 1 if it has died instead,
    or if nobody can tell. Raises RefusedError if it can't leave, DeadlineError if it has not within `timeout`."""
    from byteps_like.control.calls.client import order_drain

    began = time.monotonic()
    try:
        last = wait_until_gone(lambda now: order_drain(config, now), order, began + timeout)
    except PeerLostError as error:
        print(f"byteps-like: {error}", file=sys.stderr)
        return 1
    took = time.monotonic() - began
    if last.state.value == "lost":
        print(f"byteps-like: {last.who} died after {took:.1f} s, before it could leave", file=sys.stderr)
        return 1
    print(f"{last.who} has left, {took:.1f} s after it was asked")
    return 0


def wait_until_gone(ask: Ask, order: DrainOrder, deadline: float) -> DrainProgress:
    """Asks until the member is gone. Raises as `drain` does, and PeerLostError if no scheduler answers."""
    from byteps_like.control.members.drains import DrainState

    name, began = f"{order.role.value} {order.rank}", time.monotonic()
    mention_at = began + _MENTION_SECONDS
    while True:
        found = _patiently(ask, order, deadline)
        if found.state in (DrainState.LEFT, DrainState.LOST):
            return found
        if found.number and not order.number:
            order = replace(order, number=found.number)
            print(f"{found.who} is to leave{_WHEN[order.role]}", flush=True)
        now = time.monotonic()
        what = f"{name} to leave{_WHEN[order.role]}" if order.number else _before(found)
        if now >= deadline:
            more = "; it has been asked, and will when it can" if order.number else "; nobody was asked"
            text = f"waited for {what}, in vain for {now - began:.1f} s{more}"
            raise DeadlineError(text, operation="drain", elapsed=now - began)
        if now >= mention_at:
            mention_at = now + _MENTION_SECONDS
            print(f"waiting for {what} ({now - began:.0f} s)", flush=True)
        time.sleep(_ASK_SECONDS)


def _before(found: DrainProgress) -> str:
    """What must happen before it can be asked."""
    return (
        f"{found.who} to hand over what it keeps"
        if found.state.value == "busy"
        else "a world to form that it can leave"
    )


_WHEN = {MemberRole.SERVER: "", MemberRole.WORKER: " at its next commit()"}


def _patiently(ask: Ask, order: DrainOrder, deadline: float) -> DrainProgress:
    """The answer; of a scheduler that was there before also a little later."""
    end = min(deadline, time.monotonic() + _ABSENCE_SECONDS)
    while True:
        try:
            return ask(order)
        except PeerLostError:
            if not order.number or time.monotonic() >= end:
                raise
            time.sleep(_ASK_SECONDS)
