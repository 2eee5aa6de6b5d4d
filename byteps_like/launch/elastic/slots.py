"""Places for workers on hosts: which of them are to be filled, and which rest. Pure: times are passed in."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

MOST_DEATHS, DEATHS_SECONDS = 3, 60.0
"""So many in so many seconds, and a slot rests for"""
REST_SECONDS = 600.0
"""so long: its host may be at fault, and whoever is started there would only disturb the others."""


@dataclass
class WorkerSlot:
    """A place for one worker."""

    number: int
    """The worker's, for people; never given to another slot."""
    host: str
    is_there: bool = True
    """Its host still has it."""
    busy: bool = False
    rests_until: float = 0.0
    deaths: deque[float] = field(default_factory=deque)
    """When its last workers died."""

    def is_free(self, now: float) -> bool:
        """A worker can be started in it."""
        return self.is_there and not self.busy and self.rests_until <= now


class Slots:
    """All slots of a job, of which no more than `most` are busy at a time. Not thread-safe."""

    def __init__(self, most: int, most_deaths: int = MOST_DEATHS) -> None:
        """`most_deaths`: see MOST_DEATHS; 0: no slot ever rests."""
        self._most, self._most_deaths = most, most_deaths
        self._slots: dict[tuple[str, int], WorkerSlot] = {}
        self._closed = False

    def follow(self, hosts: Mapping[str, int]) -> list[WorkerSlot]:
        """`hosts` have so many slots each from now on. Returns those that are busy and not there any more."""
        wanted = [(host, place) for host, count in hosts.items() for place in range(count)]
        for key in wanted:
            if key not in self._slots:
                self._slots[key] = WorkerSlot(len(self._slots), key[0])
        gone = []
        for key, slot in self._slots.items():
            was_there, slot.is_there = slot.is_there, key in wanted
            if was_there and not slot.is_there and slot.busy:
                gone.append(slot)
        return gone

    def due(self, now: float, held: Collection[int] = ()) -> list[WorkerSlot]:
        """Those in which a worker is to be started; not in those with the numbers `held`."""
        if self._closed:
            return []
        free = [slot for slot in self._slots.values() if slot.is_free(now) and slot.number not in held]
        return free[: max(self._most - self.busy(), 0)]

    def began(self, slot: WorkerSlot) -> None:
        """A worker has been started in it."""
        slot.busy = True

    def ended(self, slot: WorkerSlot, now: float) -> bool:
        """Its worker has died; whether it rests now."""
        slot.busy = False
        slot.deaths.append(now)
        while slot.deaths[0] <= now - DEATHS_SECONDS:
            slot.deaths.popleft()
        rests = 0 < self._most_deaths <= len(slot.deaths)
        if rests:
            slot.rests_until = now + REST_SECONDS
            slot.deaths.clear()
        return rests

    def left(self, slot: WorkerSlot, replace: bool) -> None:
        """Its worker has left, as it was asked to. Unless it is to be replaced there is one worker fewer from now on,
        and nobody is started in this slot."""
        slot.busy = False
        if not replace:
            self._most -= 1
            slot.rests_until = math.inf

    def close(self) -> None:
        """Nobody is started any more: the job is done."""
        self._closed = True

    def busy(self) -> int:
        """How many have a worker."""
        return sum(slot.busy for slot in self._slots.values())
