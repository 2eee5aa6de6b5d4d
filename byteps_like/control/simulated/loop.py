"""An event loop whose clock stands still while something runs, and goes on to the next timer when nothing does."""

from __future__ import annotations

import asyncio
from typing import Any

from typing_extensions import override


class StuckError(Exception):
    """Everybody waits, and nobody for a time."""


class VirtualLoop(asyncio.BaseEventLoop):
    """One without files, sockets and threads."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._selector = self

    @override
    def time(self) -> float:
        """Seconds since the beginning."""
        return self._now

    def select(self, timeout: float | None) -> list[Any]:
        """As a selector: nothing ever happens, but time goes by."""
        if timeout is None:
            raise StuckError("everybody waits, and nobody for a time")
        self._now += timeout
        return []

    def _process_events(self, events: list[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nobody is to be woken: there is one thread."""
