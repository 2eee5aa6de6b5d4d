"""Ends a test that hangs so firmly that no Python runs in its process: one that waits while it holds the interpreter's
lock, say, which neither pytest's own timeout nor a deadline in the test's threads can end.

As a plugin of pytest it starts this file as a process beside each process that runs tests, and tells it through a pipe
what begins and how long that may take. When the time is over, the watcher prints the stacks of all threads of that
process and of its children, as py-spy reads them from outside, and kills them. Under pytest-xdist the run goes on with
another worker, and the test has failed.
"""

from __future__ import annotations

import math
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

COLLECTING = 300.0
ENDING = 60.0
"""Seconds that the session's own ends may take."""


class Watchdog:
    """The watcher of this process, as seen from within."""

    def __init__(self) -> None:
        command = [sys.executable, __file__, str(os.getpid())]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def expect(self, seconds: float, what: str = "") -> None:
        """From now on `what` may take so long; 0: nothing is under way."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds} {what}\n".encode())
        self._process.stdin.flush()


class Plugin:
    """Tells the watchdog what pytest does."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._watchdog = Watchdog()
        self._watchdog.expect(COLLECTING, "collecting the tests")

    def pytest_collection_finish(self) -> None:
        self._watchdog.expect(0)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        timeout = timeout_of(item)
        self._watchdog.expect(timeout + float(self._config.getini("watchdog")) if timeout else 0, item.nodeid)
        try:
            return (yield)
        finally:
            self._watchdog.expect(0)

    def pytest_enter_pdb(self) -> None:
        self._watchdog.expect(0)

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        # A worker of pytest-xdist that has done its part waits until the last of them has.
        self._watchdog.expect(0 if hasattr(config, "workerinput") else ENDING, "the end of the run")


def timeout_of(item: pytest.Item) -> float:
    """Seconds after which pytest-timeout ends the test; 0: never."""
    mark, option = item.get_closest_marker("timeout"), item.config.getoption("timeout", None)
    if mark is not None:
        return float(mark.args[0] if mark.args else mark.kwargs["timeout"])
    return float(option if option is not None else item.config.getini("timeout") or 0)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("watchdog", "seconds after a test's timeout until its process is killed from outside", default="30")


def pytest_configure(config: pytest.Config) -> None:
    runs_tests = not config.getoption("numprocesses", None) or hasattr(config, "workerinput")
    if runs_tests and not config.getoption("usepdb") and not config.getoption("collectonly"):
        config.pluginmanager.register(Plugin(config))


def watch(pid: int) -> None:
    """The watcher: returns when the process has ended, or has been killed."""
    try:
        ended, expected = os.pidfd_open(pid), sys.stdin.fileno()
    except ProcessLookupError:  # it has ended before it was watched
        return None
    watched = selectors.DefaultSelector()
    watched.register(ended, selectors.EVENT_READ)
    watched.register(expected, selectors.EVENT_READ)
    deadline, what, rest = math.inf, "", b""
    while True:
        ready = {key.fd for key, _ in watched.select(None if deadline == math.inf else deadline - time.monotonic())}
        if ended in ready:
            return None
        if not ready and time.monotonic() >= deadline:
            return end(psutil.Process(pid), what)
        if expected in ready:
            received = os.read(expected, 65536)
            if not received:
                watched.unregister(expected)
            *lines, rest = (rest + received).split(b"\n")
            for line in lines:
                seconds, _, what = line.decode().partition(" ")
                deadline = time.monotonic() + float(seconds) if float(seconds) else math.inf


def end(process: psutil.Process, what: str) -> None:
    """Says where the process and its children are, and kills them."""
    family = [process, *process.children(recursive=True)]
    say(f"\n== watchdog: {what} does not end; process {process.pid} is killed ==")
    shown = [show_stacks(each) for each in family]
    if not shown[0]:  # by pytest's faulthandler instead, which shows what is Python and needs no lock either
        process.send_signal(signal.SIGABRT)
        psutil.wait_procs([process], timeout=5)
    for each in family:
        if each.is_running():
            each.kill()


def show_stacks(process: psutil.Process) -> bool:
    """Those of all threads; False where py-spy can't look into the process."""
    try:
        say(f"-- {process.pid} ({process.status()}): {' '.join(process.cmdline())[:200]}")
        spy = [str(Path(sys.executable).with_name("py-spy")), "dump", "--native", "--pid", str(process.pid)]
        return subprocess.run(spy, stdout=sys.stderr, stderr=subprocess.STDOUT, timeout=60, check=False).returncode == 0
    except (psutil.NoSuchProcess, FileNotFoundError, subprocess.TimeoutExpired) as error:
        say(str(error))
        return False


def say(text: str) -> None:
    """At once, on the standard error that pytest had before it began to capture."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    watch(int(sys.argv[1]))
