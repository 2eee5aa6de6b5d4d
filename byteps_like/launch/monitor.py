"""What the summary line says: members and rates, sampled off the main thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Counters:
    """Totals since the start of the job, over all servers and workers."""

    at: float
    workers: int
    servers: int
    epoch: int
    pushed: int
    pulled: int
    steps: int


def rates_text(before: Counters | None, now: Counters) -> str:
    """Members and rates, e.g. "4 workers 2 servers · epoch 1 · 12.5 steps/s · ↑ 0.52 ↓ 0.52 GB/s"."""
    parts = [f"{_count(now.workers, 'worker')} {_count(now.servers, 'server')}", f"epoch {now.epoch}"]
    if before is not None and before.epoch == now.epoch and (elapsed := now.at - before.at) > 0:
        if now.steps:
            parts.append(f"{(now.steps - before.steps) / elapsed:.1f} steps/s")
        up, down = (now.pushed - before.pushed) / elapsed, (now.pulled - before.pulled) / elapsed
        parts.append(f"↑ {up / 1e9:.3f} ↓ {down / 1e9:.3f} GB/s")
    return " · ".join(parts)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


class Monitor:
    """Calls `sample` every `interval` seconds on a daemon thread; `text` is what came of the last two samples.

    A sample that fails with OSError (the scheduler's not there yet, or any more) leaves the text as it is.
    """

    def __init__(self, sample: Callable[[], Counters], interval: float = 1.0) -> None:
        self.text = ""
        self._sample = sample
        self._interval = interval
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="byteps-like-monitor", daemon=True)

    def start(self) -> None:
        """Starts sampling."""
        self._thread.start()

    def stop(self) -> None:
        """Asks the thread to end; doesn't wait for a sample under way."""
        self._stop.set()

    def _run(self) -> None:
        before: Counters | None = None
        while not self._stop.wait(self._interval):
            try:
                now = self._sample()
            except OSError:
                continue
            self.text = rates_text(before, now)
            before = now
