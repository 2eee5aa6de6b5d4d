"""What of an arena is in flight."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from byteps_like.errors import BytePSLikeError
from byteps_like.torch.device.inflight import call_all, park
from byteps_like.worker.api import Handle

SentRange = tuple[range, Handle]
"""Partitions that were sent together, and the operation that they are in flight by."""


class ArenaFlights:
    """Operations of this round, and of the one before, for which streams wait where no host has."""

    def __init__(self) -> None:
        self.flown: list[SentRange] = []
        self._behind: list[Handle] = []
        self._handed_over: list[Handle] = []

    @property
    def is_behind(self) -> bool:
        """Whether the host has not waited for the round before."""
        return bool(self._behind)

    def add(self, run: range, handle: Handle) -> None:
        """One was sent."""
        self.flown.append((run, handle))

    def catch_up(self) -> None:
        """The host waits for the round before. Raises what that failed with."""
        behind, self._behind = self._behind, []
        call_all([handle.wait for handle in behind])

    def calm_down(self) -> None:
        """The same, but errors are left to `catch_up`."""
        for handle in self._behind:
            with suppress(BytePSLikeError):
                handle.wait()

    def wait(self, host: bool) -> None:
        """Blocks until all of this round has landed; without `host`, streams wait in its place where they can, and what
        then fails is raised by `catch_up`. Raises the first error, after waiting for all."""
        handles = [handle for _, handle in self.flown]
        blocks = {} if host else {handle: handle.block for handle in handles if hasattr(handle, "block")}
        self._behind = list(blocks)
        try:
            call_all([blocks.get(handle, handle.wait) for handle in handles])
        except Exception:
            self._behind = [handle for handle in self._behind if not handle.done()]
            raise

    def hand_over(self) -> list[SentRange]:
        """Those of this round, for others to wait for."""
        flown, self.flown = self.flown, []
        self._handed_over += [handle for _, handle in flown]
        return flown

    def arrived(self) -> None:
        """What was handed over has landed."""
        self._handed_over = []

    def forget(self, memory: object, then: Callable[[], None] | None = None) -> None:
        """Those of this round, and with `then` those before and those that were handed over. What is still in flight
        keeps `memory` until it has landed; `then` is called after that."""
        handles = [handle for _, handle in self.flown]
        handles += [*self._behind, *self._handed_over] if then is not None else []
        if then is not None or not all(handle.done() for handle in handles):
            park(handles, memory, then)
        self.flown = []
