"""Who has reached which barrier. Pure bookkeeping; the scheduler wakes the waiting calls."""

from __future__ import annotations

from collections.abc import Iterable

from byteps_like.errors import InvalidArgumentError


class Barriers:
    """Barriers of one epoch by name. A rank counts its calls of each name, so a call that is repeated is not new."""

    def __init__(self, ranks: Iterable[int]) -> None:
        self._ranks = frozenset(ranks)
        self._arrived: dict[str, set[int]] = {}
        self._completed: dict[str, int] = {}

    def arrive(self, name: str, number: int, rank: int) -> bool:
        """True if the barrier is complete with `rank`, whose call `number` (from 0) of `name` this is.

        Raises InvalidArgumentError if `rank` is waiting there already.
        """
        if number < self._completed.get(name, 0):
            return True
        arrived = self._arrived.setdefault(name, set())
        if rank in arrived:
            raise InvalidArgumentError(f"rank {rank} is in barrier {name!r} already: use one name per thread")
        arrived.add(rank)
        if arrived != self._ranks:
            return False
        del self._arrived[name]
        self._completed[name] = number + 1
        return True

    def withdraw(self, name: str, rank: int) -> None:
        """`rank` no longer waits at `name`."""
        arrived = self._arrived.get(name, set())
        arrived.discard(rank)
        if not arrived:
            self._arrived.pop(name, None)

    def missing(self, name: str) -> list[int]:
        """Ranks that have not come to `name`, in order."""
        return sorted(self._ranks - self._arrived.get(name, set()))

    def pending(self) -> list[str]:
        """Names at which somebody waits."""
        return sorted(self._arrived)
