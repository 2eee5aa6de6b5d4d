"""Who has reached which barrier. Pure bookkeeping; the scheduler wakes the waiting calls."""

from __future__ import annotations

from collections.abc import Iterable

from byteps_like.errors import InvalidArgumentError


class Barriers:
    """Barriers of one epoch by name. A name can be used again as soon as its barrier is complete."""

    def __init__(self, ranks: Iterable[int]) -> None:
        self._ranks = frozenset(ranks)
        self._arrived: dict[str, set[int]] = {}

    def arrive(self, name: str, rank: int) -> bool:
        """True if `rank` was the last to come. Raises InvalidArgumentError if it is waiting there already."""
        arrived = self._arrived.setdefault(name, set())
        if rank in arrived:
            raise InvalidArgumentError(f"rank {rank} is in barrier {name!r} already: use one name per thread")
        arrived.add(rank)
        if arrived != self._ranks:
            return False
        del self._arrived[name]
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
