"""Runs cases side by side, each in a process group of its own that is killed at its deadline."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from typing import IO, Any

Outcome = tuple[str, str]
"""What became of a case ("passed", "failed", "skipped", "hung" or "died"), and what there is to say about it."""


@dataclass
class Case:
    """`body` returns the outcome; it runs in a process forked from the caller's."""

    name: str
    body: Callable[[], Outcome]
    seconds: float


@dataclass
class _Running:
    case: Case
    process: int
    pipe: Connection
    said: IO[bytes] = field(repr=False)
    end: float


def outcomes(cases: Sequence[Case], jobs: int) -> Iterator[tuple[Case, Outcome, str, float]]:
    """Case, outcome, what it has printed and its seconds, as they end; `jobs` at a time. The caller has no threads."""
    waiting, running = list(reversed(cases)), list[_Running]()
    while waiting or running:
        while waiting and len(running) < jobs:
            running.append(_begun(waiting.pop()))
        nearest = min(item.end for item in running)
        ready = wait([item.pipe for item in running], max(0.0, nearest - time.monotonic()))
        now = time.monotonic()
        for item in list(running):
            if item.pipe in ready or item.end <= now:
                running.remove(item)
                yield item.case, _ended(item), _printed(item.said), item.case.seconds - (item.end - now)


def _begun(case: Case) -> _Running:
    ours, theirs = Pipe(duplex=False)
    said = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the case has ended
    process = os.fork()
    if process == 0:
        _be(case, theirs, said)
    theirs.close()
    return _Running(case, process, ours, said, time.monotonic() + case.seconds)


def _be(case: Case, pipe: Connection, said: IO[bytes]) -> Any:
    os.setsid()
    for stream in (1, 2):
        os.dup2(said.fileno(), stream)
    try:
        pipe.send(case.body())
    finally:
        os._exit(0)


def _ended(item: _Running) -> Outcome:
    outcome: Outcome = ("hung", f"no end within {item.case.seconds:.0f} s")
    if item.pipe.poll():
        try:
            outcome = item.pipe.recv()
        except EOFError:
            outcome = ("died", "its process has ended without a word")
    with suppress(ProcessLookupError):  # also what it has left behind
        os.killpg(item.process, signal.SIGKILL)
    os.waitpid(item.process, 0)
    item.pipe.close()
    return outcome


def _printed(said: IO[bytes]) -> str:
    with said:
        said.seek(0)
        return said.read().decode(errors="replace")
