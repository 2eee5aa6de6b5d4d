"""What the examples show while they train: on rank 0 a bar with loss, step time and share of communication.

Not part of the library. A script of your own needs nothing of this.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

import byteps_like.torch as bps
from byteps_like.torch.device.devices import why_not

REFRESH_SECONDS = 0.2
PLAIN_SECONDS = 2.0
WARM_UP_STEPS = 3
"""Steps left out of the timings: buffers and names are agreed on in the first, the layout after it."""


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser whose help is the example's own docstring."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def add_device(known: argparse.ArgumentParser) -> None:
    """The option of examples that can train on a GPU."""
    text = "where to train (default cpu); the workers of a host share out its GPUs, or share one"
    known.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help=text)


def device_of(name: str) -> torch.device:
    """The device of this rank; ranks of one host share theirs out. Says why, and ends, if there is none."""
    if name == "cpu":
        return torch.device("cpu")
    if why := why_not():
        raise SystemExit(f"--device {name}: {why}")
    return torch.device(name, bps.local_rank() % torch.cuda.device_count())


def console() -> Console:
    """A terminal's console; `byteps-like run` gives its workers COLUMNS where its own output is a terminal."""
    return Console(force_terminal=True) if "COLUMNS" in os.environ and not sys.stdout.isatty() else Console()


class Training:
    """The progress of one training run: shown on rank 0, recorded on all. A context manager around the steps."""

    def __init__(self, title: str, steps: int) -> None:
        self._console = console() if bps.rank() == 0 else Console(quiet=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}"),
        )
        self._bar = Progress(*columns, console=self._console, auto_refresh=False, expand=True)
        self._task = self._bar.add_task(title, total=steps, text="")
        self._title = title
        self._losses: list[float] = []
        self._seconds: list[float] = []
        self._blocked: list[float] = []
        self._waited = 0.0
        self._shown = 0.0
        self._printed = 0

    def __enter__(self) -> Training:
        if self._console.is_terminal:
            self._bar.start()
        self._started = self._last = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self._show()
        if self._console.is_terminal:
            self._bar.stop()

    @contextmanager
    def communication(self) -> Iterator[None]:
        """Around a call that waits for the network: its time counts as communication."""
        before = time.perf_counter()
        yield
        self._waited += time.perf_counter() - before

    def step(self, loss: float) -> None:
        """After each step, with this rank's loss."""
        now = time.perf_counter()
        self._losses.append(loss)
        self._seconds.append(now - self._last)
        self._blocked.append(self._waited)
        self._last, self._waited = now, 0.0
        if now - self._shown > (REFRESH_SECONDS if self._console.is_terminal else PLAIN_SECONDS):
            self._shown = now
            self._show()

    def _timed(self) -> tuple[list[float], list[float]]:
        start = WARM_UP_STEPS if len(self._seconds) > WARM_UP_STEPS else 0
        return self._seconds[start:], self._blocked[start:]

    def _show(self) -> None:
        if not self._losses or self._printed == len(self._losses):
            return
        self._printed = len(self._losses)
        seconds, blocked = self._timed()
        share = sum(blocked) / sum(seconds)
        text = f"loss {self._losses[-1]:.3f} · {median(seconds) * 1e3:.1f} ms/step · {share:.0%} communication"
        done = len(self._losses)
        self._bar.update(self._task, completed=done, text=text, refresh=self._console.is_terminal)
        if not self._console.is_terminal:
            self._console.print(f"{self._title} step {done}: {text}", highlight=False, soft_wrap=True)

    def result(self, **fields: Any) -> dict[str, Any]:
        """The run in figures, the same on all ranks: loss per step as the mean over ranks, times as rank 0's."""
        losses = bps.push_pull(torch.tensor(self._losses, dtype=torch.float64), name="losses")
        seconds, blocked = self._timed()
        stats = bps.stats()
        moved = torch.tensor([stats["payload_sent"], stats["payload_received"]])
        sent, received = bps.push_pull(moved, average=False, name="moved").tolist()
        own = {
            "workers": bps.size(),
            "steps": len(self._losses),
            "loss": losses.tolist(),
            "train_seconds": self._last - self._started,
            "steps_per_second": len(seconds) / sum(seconds),
            "step_seconds": median(seconds),
            "communication_share": sum(blocked) / sum(seconds),
            "payload_sent": sent,
            "payload_received": received,
        }
        return {**bps.broadcast_object(own), **fields}


def save(result: dict[str, Any], path: Path | None) -> None:
    """Writes `result` as JSON on rank 0, if there is a path."""
    if path is not None and bps.rank() == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result) + "\n")
