"""What servers keep of a state, in the next world.

When ranks leave a world together, at a commit, servers set it aside, or each rank takes a share with it, in its memory;
in the next world those take it who are to keep it there. If a world ends by a failure there is nothing to take: then a
cut has the values, or nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from byteps_like.errors import InvalidArgumentError, PeerLostError
from byteps_like.store.saving.carrying import CarriedShare, joined
from byteps_like.store.saving.checkpoint import Taken
from byteps_like.torch.elastic.agreement import exchange
from byteps_like.torch.elastic.cuts.content import GoesOn, KeptOnServers
from byteps_like.torch.job import runtime as _runtime
from byteps_like.torch.ops.objects import allgather_object
from byteps_like.worker.keeping import Keeps

_ATTEMPTS = 3
"""To take shares, where ranks die meanwhile, and to take them over."""


@dataclass
class Carried:
    """What this rank has, by the names of the state's values."""

    shares: dict[str, Taken] = field(default_factory=dict)
    """Until they are taken over."""
    lost: str = ""
    """Why there can be none, where servers kept something."""
    missed: str = ""
    """The same, unless another rank has some: this one had nothing of the world before."""
    tries: int = 0
    """Worlds that have ended before all was taken over."""
    _is_over: bool = False

    @classmethod
    def from_world(cls, kept: Mapping[str, KeptOnServers], leaves: bool) -> Carried:
        """All ranks call it, at the same commit; `leaves`: whether this one goes. Blocks until all have come. Raises
        PeerLostError where that can't be had, and InvalidArgumentError for what can't be carried."""
        if not kept:
            return cls()
        leaving = [rank for rank, (goes,) in enumerate(exchange([int(leaves)])) if goes]
        return cls({name: _taken(name, value, leaving) for name, value in kept.items()})

    def again(self, kept: Mapping[str, KeptOnServers], cause: Exception) -> Carried:
        """For the next world, after one that has ended by a failure: this, where it is yet to be taken over."""
        lost = lost_with_world(kept, cause)
        if self._is_over or self.lost or self.tries + 1 >= _ATTEMPTS:
            return lost
        return replace(self, tries=self.tries + 1, missed="" if self.shares else lost.lost)

    def into_world(self, kept: Mapping[str, KeptOnServers]) -> None:
        """All ranks call it, those that have nothing, too. Raises ValuesLostError where something is missing, on all
        ranks; nothing is changed of that then."""
        if not kept:
            return
        every = allgather_object({name: CarriedShare.of(taken) for name, taken in self.shares.items()})
        for name, value in kept.items():
            brought = [one[name] for one in every if name in one]
            if brought:
                taken = self.shares.get(name)
                contents = brought[0].aside or (() if taken is None else taken.contents)
                _going_on(name, value).take_over(joined(brought), contents)
        self.end()

    def end(self) -> None:
        """All of it is taken over, or nobody wants it any more: servers drop what they have set aside. All ranks call
        it."""
        self.shares, self.lost, self.missed, self._is_over = {}, "", "", True
        worker = _runtime.current().worker
        if _runtime.rank() == 0 and isinstance(worker, Keeps):
            with suppress(PeerLostError):  # then they have it until the world after
                worker.let_go()


def lost_with_world(kept: Mapping[str, KeptOnServers], cause: Exception) -> Carried:
    """After a world that has ended by a failure."""
    if not kept:
        return Carried()
    names = ", ".join(map(repr, sorted(kept)))
    return Carried(lost=f"{cause}; the common values of {names} went with the world that has ended")


def reopened(kept: Mapping[str, KeptOnServers]) -> None:
    """Has servers of this world keep all of it."""
    for name, value in kept.items():
        _going_on(name, value).reopen()


def _taken(name: str, value: KeptOnServers, leaving: list[int]) -> Taken:
    kept = _going_on(name, value)
    for _ in range(_ATTEMPTS - 1):
        with suppress(PeerLostError):  # all who are left get it, and try again together
            return kept.leave(leaving)
    return kept.leave(leaving)


def _going_on(name: str, value: KeptOnServers) -> GoesOn:
    if not isinstance(value, GoesOn):
        raise InvalidArgumentError(
            f"{name!r} is a {type(value).__name__}, which is of one world: start the job again from a cut"
        )
    return value
