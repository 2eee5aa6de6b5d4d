"""Horovod's process sets: operations over some of the ranks. Operations of different sets run at the same time."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence

from byteps_like.errors import InvalidArgumentError, NotInitializedError
from byteps_like.torch.job import runtime as _runtime
from byteps_like.torch.job.runtime import Runtime
from byteps_like.worker.agreement import Agreement


class ProcessSet:
    """A subset of the ranks, on which operations can run by `process_set=`, as in Horovod.

    `ranks`: world ranks, in any order. The set is usable after `add_process_set(it)` or `init(process_sets=[it, ...])`.
    """

    mpi_comm = None
    """Horovod's, which makes sets of MPI's communicators too."""

    def __init__(self, ranks: Iterable[int]) -> None:
        self.process_set_id: int | None = None
        if not isinstance(ranks, Iterable) or isinstance(ranks, str):
            raise InvalidArgumentError(f"a process set is made of ranks, not of {ranks!r}")
        self._ranks = tuple(sorted(set(ranks)))
        self._home: Callable[[], Runtime | None] = lambda: None

    @property
    def ranks(self) -> list[int]:
        """Its world ranks, ascending; once it is added, those that its members have in the view in force."""
        home = self._home()
        if home is None or home.closed or self.process_set_id is None:
            return list(self._ranks)
        return list(home.ranks_of(self.process_set_id))

    def settle(self, runtime: Runtime, number: int) -> None:
        """It is set `number` of `runtime` from now on."""
        self._home, self.process_set_id = weakref.ref(runtime), number

    def included(self) -> bool:
        """Whether this process is one of them."""
        return _runtime.rank() in self.ranks

    def size(self) -> int | None:
        """Number of ranks; None while the set is not added."""
        return None if self.process_set_id is None else len(self.ranks)

    def rank(self) -> int | None:
        """This process's place among them; None while the set is not added. Raises InvalidArgumentError if it is not
        one of them."""
        if self.process_set_id is None:
            return None
        ranks, own = self.ranks, _runtime.rank()
        if own not in ranks:
            raise InvalidArgumentError(f"rank {own} is not in {self!r}")
        return ranks.index(own)

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"


class _World(ProcessSet):
    """All ranks, of whatever world this process is in."""

    def __init__(self) -> None:
        super().__init__(())
        self.process_set_id = 0

    @property
    def ranks(self) -> list[int]:
        """Empty before `init()`."""
        try:
            return list(range(_runtime.size()))
        except NotInitializedError:
            return []


global_process_set: ProcessSet = _World()
"""All ranks: what operations without `process_set` go over."""


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Makes a process set usable, and returns it. Every rank of the world must call it, in the same order. Blocks.

    Raises InvalidArgumentError for ranks that aren't there or a set that has been added; MismatchError if other ranks
    add another set.
    """
    return register(_runtime.current(), process_set)


def prepared(given: object) -> list[ProcessSet]:
    """The static list of `init`. Horovod's "dynamic" says that more may be added later: they always may here."""
    if not isinstance(given, Iterable):
        raise InvalidArgumentError(f"process_sets={given!r} is not a list of process sets")
    items = () if given == "dynamic" else given
    return [item if isinstance(item, ProcessSet) else ProcessSet(item) for item in items]


def register(runtime: Runtime, process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """As `add_process_set`, in a runtime that need not be the current one."""
    made = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    if made.process_set_id is not None and runtime.has_scope(made.process_set_id, made.ranks):
        raise InvalidArgumentError(f"{made!r} has been added already")
    number = runtime.add_scope(made.ranks)
    lane = runtime.scope(None).lane("process sets")
    Agreement(lane, "add_process_set", f"ranks {made.ranks}").wait()
    made.settle(runtime, number)
    return made


def remove_process_set(process_set: ProcessSet) -> bool:
    """Removes a process set; returns False if it is unknown or the global set. Every rank must call it."""
    number = process_set.process_set_id
    if not number or not _runtime.current().remove_scope(number):
        return False
    process_set.process_set_id = None
    return True
