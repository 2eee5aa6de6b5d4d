"""Holds the tests of units to one process: who starts another says so by the mark `processes`.

`make test-fast` leaves out what has that mark. What is refused is seen by Python's audit events: those of
multiprocessing's own "spawn" are not among them.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator

import pytest

ALONE = ("tests/unit/", "tests/property/", "tests/package/")
"""Where the names of the tests begin that start no processes."""
STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}


class Plugin:
    """Knows which test runs."""

    def __init__(self) -> None:
        self._alone = ""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        alone = item.nodeid.startswith(ALONE) and not item.get_closest_marker("processes")
        self._alone = item.nodeid if alone else ""
        try:
            return (yield)
        finally:
            self._alone = ""

    def hear(self, event: str, arguments: object) -> None:
        """The audit hook. Raises RuntimeError, in who starts the process, if the test may not."""
        if self._alone and event in STARTS:
            raise RuntimeError(f"{self._alone} starts a process: mark it with @pytest.mark.processes")


def pytest_configure(config: pytest.Config) -> None:
    importlib.import_module("matplotlib.font_manager")  # which looks for fonts by a command, on a new machine
    plugin = Plugin()
    config.pluginmanager.register(plugin, "processes")
    sys.addaudithook(plugin.hear)
