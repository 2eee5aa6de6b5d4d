"""A job's status in words, and the launcher's thread that keeps them up to date."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from byteps_like.config import Config
from byteps_like.errors import BytePSLikeError, DeadlineError, PeerLostError

if TYPE_CHECKING:
    from byteps_like.control.calls.status import JobStatus
    from byteps_like.server.figures import KeptFigures

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StatusSample:
    """A status and when it was taken (monotonic seconds)."""

    status: JobStatus
    at: float
    kept: Mapping[str, KeptFigures] = field(default_factory=dict)
    """What servers have counted of the values that they keep, by store; only where somebody has asked them."""
    silent: tuple[str, ...] = ()
    """Which servers have not answered then, in words."""

    def total(self, role: str, counter: str) -> float:
        """The sum of one counter over the members of a role."""
        return sum(member.stats.get(counter, 0.0) for member in self.status.members if member.member.role == role)

    @property
    def pushed(self) -> float:
        """Bytes of payload that all workers have pushed; servers count those that they took from shared memory."""
        return self.total("worker", "payload_sent") + self.total("server", "referenced")

    @property
    def pulled(self) -> float:
        """Bytes of payload that have landed with all workers; what came by shared memory also goes by it."""
        return self.total("worker", "payload_received") + self.total("server", "referenced")


def take_sample(config: Config) -> StatusSample:
    """Asks the scheduler. Raises as `query_status` does."""
    from byteps_like.control.calls.client import query_status

    return StatusSample(query_status(config), time.monotonic())


def rates_text(before: StatusSample | None, now: StatusSample) -> str:
    """Steps per second, where workers count them, and payload each way: "12.5 steps/s · ↑ 0.521 ↓ 0.521 GB/s".

    The directions are the workers': what all of them together pushed and pulled.
    """
    if before is None or before.status.epoch != now.status.epoch or now.at <= before.at:
        return ""
    elapsed = now.at - before.at
    stepping = sum("steps" in member.stats for member in now.status.members)
    steps = (now.total("worker", "steps") - before.total("worker", "steps")) / elapsed / max(stepping, 1)
    up, down = (now.pushed - before.pushed) / elapsed / 1e9, (now.pulled - before.pulled) / elapsed / 1e9
    return (
        f"{max(0.0, steps):.1f} steps/s · " if stepping else ""
    ) + f"↑ {max(0.0, up):.3f} ↓ {max(0.0, down):.3f} GB/s"


def members_text(status: JobStatus) -> str:
    """Who is there: "4 workers · 2 servers · epoch 1"; while the world forms, who is missing."""
    counts = []
    for role in ("worker", "server"):
        there = sum(member.member.role == role and member.state != "left" for member in status.members)
        counts.append(f"{there} {role}{'' if there == 1 else 's'}")
    if status.state == "forming":
        return " · ".join([*counts, status.text or "forming"])
    return " · ".join([*counts, f"epoch {status.epoch}", *([] if status.state == "running" else [status.state])])


def summary(before: StatusSample | None, now: StatusSample) -> str:
    """Members and rates in one line."""
    return " · ".join(part for part in (members_text(now.status), rates_text(before, now)) if part)


class Monitor:
    """Keeps `text` up to date on a daemon thread, once per `interval` seconds. Start it after the last fork."""

    def __init__(self, config: Config, interval: float = 1.0) -> None:
        self.text = ""
        self._config = config
        self._interval = interval
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="byteps-like-monitor", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after the call that is under way."""
        self._stopped.set()

    def _run(self) -> None:
        before: StatusSample | None = None
        while not self._stopped.wait(self._interval):
            try:
                now = take_sample(self._config)
            except (PeerLostError, DeadlineError):
                continue  # not there any more: the launcher sees the end of the process itself
            except BytePSLikeError as error:
                log.warning("no summary: %s", error)
                return
            self.text = summary(before, now)
            before = now
