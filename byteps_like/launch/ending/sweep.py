"""Ends every process of a job and removes its directory, whoever else has died. Standard library only.

A job's processes are found by their environment: each inherits `_BYTEPS_LIKE_LAUNCH`, the path of the job's private
directory, which is unique to one launch. (Not the secret's variable: who sets that to look at a job, or to join it
from outside, is not to be killed with it.) Found with them are their descendants and the members of
their sessions, which covers a program that overwrote its environment (setproctitle). Processes are held by pidfd from
before the check until after the kill, so a number that is used again never hits a stranger.

Run as a script this is the job's watchdog: it waits for its standard input to close, which happens however the
launcher ends (kill -9 included), and sweeps. It is started before the directory is made, by path and with `-I -S`,
so it costs a few milliseconds and imports nothing of the package.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MARKER = "_BYTEPS_LIKE_LAUNCH"
SECRET_NAME = "secret"
SWEEP_DEADLINE = 5.0


@dataclass(frozen=True)
class _Process:
    pid: int
    parent: int
    session: int
    marked: bool


def marker_of(directory: Path) -> str:
    """The environment entry that marks a process as belonging to the job of `directory`."""
    return f"{MARKER}={directory}"


def members(directory: Path) -> list[int]:
    """Process ids of the job, without the caller and its ancestors. One pass over /proc; zombies are left out."""
    table = {process.pid: process for process in _snapshot(marker_of(directory))}
    found = {pid for pid, process in table.items() if process.marked}
    spared = _ancestors(table, os.getpid())
    grown = True
    while grown:
        # A session counts only with its leader: a marked process may have been started from somebody's shell.
        roots = found - spared
        more = {pid for pid, process in table.items() if process.parent in roots or process.session in roots}
        grown = not more <= found
        found |= more
    return sorted(found - spared)


def sweep(directory: Path, deadline: float = SWEEP_DEADLINE) -> list[int]:
    """Kills the job's processes at once, waits until they are gone and removes `directory`.

    Looks again until nothing is found, since a process may fork while it is being killed. Returns what was killed.
    """
    end = time.monotonic() + deadline
    killed: list[int] = []
    while (pids := members(directory)) and time.monotonic() < end:
        killed += _kill_and_wait(pids, directory, end)
    shutil.rmtree(directory, ignore_errors=True)
    return killed


def _kill_and_wait(pids: list[int], directory: Path, end: float) -> list[int]:
    with contextlib.ExitStack() as stack:
        held: dict[int, int] = {}
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                held[pid] = os.pidfd_open(pid)
                stack.callback(os.close, held[pid])
        sure = set(members(directory))
        held = {pid: fd for pid, fd in held.items() if pid in sure}
        for fd in held.values():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        _wait_gone(list(held.values()), end)
        return list(held)


def _wait_gone(pidfds: list[int], end: float) -> None:
    poller = select.poll()
    for fd in pidfds:
        poller.register(fd, select.POLLIN)
    remaining = len(pidfds)
    while remaining and (left := end - time.monotonic()) > 0:
        for fd, _ in poller.poll(left * 1000):
            poller.unregister(fd)
            remaining -= 1


def _snapshot(marker: str) -> Iterator[_Process]:
    needle = b"\0" + marker.encode() + b"\0"
    for entry in os.listdir("/proc"):  # noqa: PTH208 -- Path.iterdir costs four times as much here
        if not entry.isdigit():
            continue
        # A process may end between any two of these reads, and those of other users can't be read.
        with contextlib.suppress(OSError):
            state, parent, session = _stat(entry)
            if state not in "ZX":
                yield _Process(int(entry), parent, session, needle in b"\0" + _environment(entry))


def _stat(pid: str) -> tuple[str, int, int]:
    fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(") ")[2].split()
    return fields[0], int(fields[1]), int(fields[3])


def _environment(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def _ancestors(table: dict[int, _Process], pid: int) -> set[int]:
    found: set[int] = set()
    while pid in table and pid not in found:
        found.add(pid)
        pid = table[pid].parent
    return found


def _watch(directory: Path) -> None:
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(name, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    sweep(directory)


if __name__ == "__main__":
    _watch(Path(sys.argv[1]))
