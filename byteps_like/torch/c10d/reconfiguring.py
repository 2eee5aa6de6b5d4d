"""Groups whose ranks come and go: `init_process_group(enable_reconfigure=True)` of torch 2.14 and later.

Each process offers a handle, and whoever manages the job passes the handles of a new group to all of its ranks, which
then form a world of their own, without a scheduler and without a store.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any, NoReturn, Protocol

import torch.distributed as dist
from torch._C._distributed_c10d import ErrorType
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from byteps_like.errors import CorruptError, InvalidArgumentError, NotInitializedError
from byteps_like.torch.c10d.options import GroupOptions
from byteps_like.torch.c10d.process_group import GroupMembership, ProcessGroup
from byteps_like.torch.c10d.work import Work
from byteps_like.torch.job.rendezvous import Meetable, peer_from

_FIRST = "this process group has no ranks yet: call reconfigure() on all of them first"


class ReconfigureRequest(Protocol):
    """torch's ReconfigureOptions."""

    uuid: int
    handles: Collection[str]
    timeout: timedelta | None


@dataclass(frozen=True)
class ReconfigureHandle:
    """One process that is ready to be a rank of a world."""

    rank: int
    """That it has had: who is given without an order keeps it as far as that is possible."""
    name: str
    """Its own, at random."""
    peer: dict[str, Any]
    """Its addresses."""

    @property
    def text(self) -> str:
        """As it travels."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def of(cls, text: str) -> ReconfigureHandle:
        """Raises CorruptError for what is none."""
        try:
            found = json.loads(text)
            return cls(int(found["rank"]), str(found["name"]), dict(found["peer"]))
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptError(f"{text[:80]!r} is no handle of a process: {error!r}", operation="reconfigure") from None


class NoWorld:
    """Stands where a world will be: its groups have a rank and a size, and all of their calls raise."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def group(self, name: str, ranks: Sequence[int] | None = None) -> Any:
        """See C10dWorld."""
        return _NoGroup(name, self.rank, tuple(range(self.size) if ranks is None else ranks))

    def release(self, name: str) -> None:
        """It holds nothing."""

    def cancel(self, name: str, error: Exception) -> None:
        """There is nothing in flight."""

    def fail(self, error: Exception) -> None:
        """Calls raise as they are."""

    def empty_shared(self, nbytes: int) -> NoReturn:
        """There is nobody to share it with."""
        raise NotInitializedError(f"{nbytes} bytes of shared memory: {_FIRST}")

    def close(self) -> None:
        """There is nothing to leave."""


class _NoGroup:
    def __init__(self, name: str, rank: int, ranks: tuple[int, ...]) -> None:
        self.name, self.rank, self.ranks, self.size = name, rank, ranks, len(ranks)
        self.hosts: tuple[tuple[int, ...], ...] = ()

    def __getattr__(self, name: str) -> NoReturn:
        raise NotInitializedError(f"{name}: {_FIRST}")


class ReconfigurableGroup(ProcessGroup):
    """A process group that begins without ranks, and gets others with each `reconfigure`."""

    supports_reconfigure = True

    def __init__(self, membership: GroupMembership, options: GroupOptions, meetable: Meetable) -> None:
        """`membership`: of a NoWorld. `meetable` makes a process that others can reach."""
        super().__init__(membership, options)
        self._meetable, self._store = meetable, membership.store
        self._used: set[int] = set()
        self._next: tuple[ReconfigureHandle, Any] | None = None
        self._changing = threading.Lock()

    def rank(self) -> int:
        """Of this process, in the group as it is now."""
        return self.lanes.first.rank

    def size(self) -> int:
        """How many ranks it has now."""
        return self.lanes.first.size

    getRank, getSize = rank, size

    def get_reconfigure_handle(self) -> str:
        """What the others must have to form a group with this process, which listens from here on. The same until
        `reconfigure` has used it up."""
        with self._changing:
            if self._next is None:
                made = self._meetable()
                self._next = ReconfigureHandle(self.rank(), secrets.token_hex(8), asdict(made.own)), made
            return self._next[0].text

    def reconfigure(self, opts: ReconfigureRequest) -> Work:
        """From here on the group is made of other processes, all of which call it alike. What is in flight in it, and
        in groups made of its ranks, raises ShutdownError, or PeerLostError where another process was here first. The
        work is done when all ranks have come.

        opts.uuid: a number that this group has not had before; equal on all ranks.
        opts.handles: of each rank, as a list, by rank; or as a set: ranks that have been in a group before keep their
            order then. That of this process is among them.
        opts.timeout: how long the work waits; None: as long as any call.

        Raises InvalidArgumentError for a used uuid and for handles without this process's, or that come twice;
        CorruptError for what is no handle. The work raises DeadlineError, naming who has not come, and errors of links;
        then call this again, with new handles.
        """
        given = [ReconfigureHandle.of(text) for text in opts.handles]
        if not isinstance(opts.handles, list | tuple):
            given.sort(key=lambda one: (one.rank, one.name))
        peers = [peer_from(one.peer, rank) for rank, one in enumerate(given)]
        with self._changing:
            rank = self._checked(opts.uuid, given)
            assert self._next is not None
            (_, world), self._next = self._next, None
            self._used.add(opts.uuid)
            incarnation = _incarnation(opts.uuid, given)
            world.join(1, rank, peers, incarnation)
            self._end(f"process group {self._name!r} was reconfigured")
            self._enter(
                replace(
                    self._membership, world=world, ranks=tuple(range(len(given))), owns_world=True,
                    store=PrefixStore(f"reconfigured/{incarnation.hex()}", self._store),
                )
            )  # fmt: skip
        barrier = dist.BarrierOptions()
        if opts.timeout is not None:
            barrier.timeout = opts.timeout
        return self.barrier(barrier)

    def _checked(self, uuid: int, given: Sequence[ReconfigureHandle]) -> int:
        """This process's rank among them."""
        if uuid in self._used:
            raise InvalidArgumentError(
                f"reconfigure: uuid {uuid} was already used by this process group; take a new one"
            )
        names = [one.name for one in given]
        if len(set(names)) != len(names):
            raise InvalidArgumentError("reconfigure: a handle is given twice: each process has one rank")
        if self._next is None or self._next[0].name not in names:
            raise InvalidArgumentError(
                "reconfigure: this process's handle is not among those given, or has been used: each serves once, so"
                " collect those of get_reconfigure_handle() anew"
            )
        return names.index(self._next[0].name)

    def get_error(self) -> Any:
        """SUCCESS: calls say themselves what has gone wrong."""
        return ErrorType.SUCCESS

    def shutdown(self) -> None:
        """See ProcessGroup."""
        super().shutdown()
        with self._changing:
            if self._next is not None:
                self._next[1].close()
                self._next = None


def _incarnation(uuid: int, handles: Sequence[ReconfigureHandle]) -> bytes:
    """Of this one world: links of another refuse it."""
    text = json.dumps([uuid, *(one.text for one in handles)])
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
