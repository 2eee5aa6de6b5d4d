"""Schedulers and servers that have died, and whose places others take. Pure: times are passed in."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from byteps_like.launch.child import ChildPart

MOST_DEATHS, DEATHS_SECONDS = 3, 60.0
"""Of one service, in so many seconds, that a job outlives; more, and it isn't by chance."""


class Replacing:
    """Which places are empty, and which of them may be taken. Not thread-safe."""

    def __init__(self, most: int) -> None:
        """Each may die `most` times in DEATHS_SECONDS; 0: as often as it likes."""
        self._most = most
        self._deaths: dict[ChildPart, deque[float]] = {}
        self._empty: list[ChildPart] = []

    def died(self, part: ChildPart, now: float) -> bool:
        """Whether another one may take its place; then it is empty from now on."""
        if self._most:
            deaths = self._deaths.setdefault(part, deque(maxlen=self._most + 1))
            deaths.append(now)
            if len(deaths) > self._most and deaths[0] > now - DEATHS_SECONDS:
                return False
        self._empty.append(part)
        return True

    def left(self, part: ChildPart) -> None:
        """It has left in order, for another one to take its place: it is empty from now on."""
        self._empty.append(part)

    def due(self, held: Collection[ChildPart]) -> list[ChildPart]:
        """Those to start now: all empty places but the `held` ones. They are taken then."""
        found = [part for part in self._empty if part not in held]
        self._empty = [part for part in self._empty if part in held]
        return found
