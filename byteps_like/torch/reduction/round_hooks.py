"""Who looks at a reducer's rounds from outside, and changes between two of them how gradients travel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, TypeVar


class Watcher(Protocol):
    """Tuning, Probing, Watching (see adapt)."""

    @property
    def waits(self) -> bool:
        """Whether the round under way has to end with nothing in flight, since something may change after it."""

    def after_round(self) -> None:
        """A round has ended, or has departed; none is under way but that. On all ranks alike."""


W = TypeVar("W", bound=Watcher)


class Watchers:
    """Those of one reducer, in order."""

    def __init__(self) -> None:
        self._all: list[Watcher] = []

    def add(self, watcher: Watcher) -> None:
        """One more, told after those before."""
        self._all.append(watcher)

    def of(self, kind: type[W]) -> W | None:
        """The one of this class, subclasses not counted; None: there is none."""
        return next((watcher for watcher in self._all if type(watcher) is kind), None)

    def __iter__(self) -> Iterator[Watcher]:
        return iter(self._all)

    @property
    def wait(self) -> bool:
        """Whether any of them does."""
        return any(watcher.waits for watcher in self._all)

    def tell(self) -> None:
        """A round has ended."""
        for watcher in self._all:
            watcher.after_round()
