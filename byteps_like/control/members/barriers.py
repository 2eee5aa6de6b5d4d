"""Who has reached which barrier. Pure bookkeeping; the scheduler wakes the waiting calls."""

from __future__ import annotations

from collections.abc import Mapping, Set

from byteps_like.control.types import View
from byteps_like.errors import InvalidArgumentError


class Barriers:
    """The job's barriers by name: each is complete once all workers of the view in force have come, but for those that
    are left out.

    Workers are known by member number. Each counts its calls of a name, so a call that is repeated is not new. Who
    joins later counts from 0 all the same, and meets the others at the barrier they come to next.
    """

    def __init__(self) -> None:
        self._view: View | None = None
        self._awaited: set[int] = set()
        """Members that have to come."""
        self._arrived: dict[str, set[int]] = {}
        self._completed: dict[str, int] = {}
        self._before: dict[int, dict[str, int]] = {}
        """By member: how many barriers of each name were complete before it came."""

    def follow(self, view: View) -> list[str]:
        """`view` is in force from now on. Returns the names whose barriers waited only for members that left."""
        members = view.ranks.keys()
        if members.isdisjoint(self._before):
            self._completed.clear()  # nobody is there any more who counts them
        self._before = {
            member: self._before[member] if member in self._before else dict(self._completed) for member in members
        }
        self._view = view
        return self._await(set(members))

    def leave_out(self, gone: Set[int]) -> list[str]:
        """These members of the view in force come no more. Returns the names whose barriers waited only for them."""
        return self._await(self._awaited - gone) if self._awaited & gone else []

    def is_over(self, name: str, number: int, member: int) -> bool:
        """Whether the barrier was complete before, to which call `number` (from 0) of `name` of `member` belongs."""
        return number + self._before[member].get(name, 0) < self._completed.get(name, 0)

    def arrive(self, name: str, number: int, member: int) -> bool:
        """True if the barrier is complete with `member`, whose call `number` (from 0) of `name` this is; or was before.

        Raises InvalidArgumentError if `member` is waiting there already.
        """
        if self.is_over(name, number, member):
            return True
        arrived = self._arrived.setdefault(name, set())
        if member in arrived:
            rank = self._in_force().ranks[member]
            raise InvalidArgumentError(f"rank {rank} is in barrier {name!r} already: use one name per thread")
        arrived.add(member)
        return self._complete(name)

    def show(self, member: int, counts: Mapping[str, int]) -> list[str]:
        """`member` has been let go from so many barriers of each name, perhaps by an earlier scheduler: so have all.
        Returns the names of those at which somebody waits to hear of that."""
        released = []
        for name, count in counts.items():
            number = count + self._before[member].get(name, 0)
            if number > self._completed.get(name, 0):
                self._completed[name] = number
                if self._arrived.pop(name, None):
                    released.append(name)
        return released

    def withdraw(self, name: str, member: int) -> None:
        """`member` no longer waits at `name`."""
        arrived = self._arrived.get(name, set())
        arrived.discard(member)
        if not arrived:
            self._arrived.pop(name, None)

    def missing(self, name: str) -> list[int]:
        """Ranks that have not come to `name`, in order."""
        arrived = self._arrived.get(name, set())
        missing = self._awaited - arrived
        return [rank for member, rank in self._in_force().ranks.items() if member in missing]

    def pending(self) -> list[str]:
        """Names at which somebody waits."""
        return sorted(self._arrived)

    def _await(self, members: set[int]) -> list[str]:
        """Only these from now on. Returns the names whose barriers are complete with that."""
        self._awaited = members
        for name in self.pending():
            self._arrived[name] &= members
            if not self._arrived[name]:
                del self._arrived[name]
        return [name for name in self.pending() if self._complete(name)]

    def _complete(self, name: str) -> bool:
        if self._arrived[name] != self._awaited:
            return False
        del self._arrived[name]
        self._completed[name] = self._completed.get(name, 0) + 1
        return True

    def _in_force(self) -> View:
        assert self._view is not None
        return self._view
