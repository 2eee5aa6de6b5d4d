"""Removes a lab when its owner closes it or dies, however it dies.

Runs as a process of its own: `python -m byteps_like.launch.lab.watchdog <prefix> <owner's pid>`, with a pipe from the
owner as standard input. The end of the pipe, or of the owner, is the signal. The pipe alone would not do: a child
that the owner forked without exec holds a copy of it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

from byteps_like.launch.lab import network


class Watchdog:
    """The owner's side. `close()` removes the lab and returns when that is done; so there is one way to remove it."""

    def __init__(self, prefix: str) -> None:
        root = str(Path(__file__).parents[3])
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, prefix, str(os.getpid())],
            stdin=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C at the terminal must not reach it
        )

    @property
    def pid(self) -> int:
        """Of the watchdog's process."""
        return self._process.pid

    def close(self, timeout: float = 20.0) -> None:
        """Idempotent. Raises subprocess.TimeoutExpired if the lab is not gone after `timeout` seconds."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        self._process.wait(timeout)


def watch(prefix: str, owner: int) -> None:
    """Blocks until standard input or the process `owner` ends, then removes the lab."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    watched = [sys.stdin.fileno()]
    with contextlib.suppress(ProcessLookupError):  # if it died already, its end of the pipe is closed as well
        watched.append(os.pidfd_open(owner))
    select.select(watched, [], [])
    network.destroy(prefix)


if __name__ == "__main__":
    watch(sys.argv[1], int(sys.argv[2]))
