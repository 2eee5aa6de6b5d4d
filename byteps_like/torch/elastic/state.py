"""What a training function trains: kept in memory at each commit, and equal on all ranks after a synchronization."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Protocol

from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.elastic.agreement import changes, exchange
from byteps_like.torch.elastic.cuts.content import CutContent, KeptOnServers, Owns
from byteps_like.torch.elastic.cuts.random_states import random_states
from byteps_like.torch.elastic.cuts.saver import Saver
from byteps_like.torch.elastic.interrupts import HostsUpdatedInterrupt
from byteps_like.torch.job import runtime as _runtime
from byteps_like.torch.ops.objects import broadcast_object


class Feeds(Protocol):
    """What has newcomers catch up (catching_up.feeding)."""

    @property
    def heard(self) -> int:
        """The newest newcomer of whom this rank has heard; 0: of none."""

    def begin(self, newest: int) -> None:
        """At a commit: of all newcomers up to this one all ranks have heard. All ranks call it."""

    def end(self, in_order: bool, leaves: bool) -> None:
        """This rank goes out of the world: `in_order`, with all others at a commit, or after a failure; `leaves`: and
        out of the job."""

    def enter(self) -> None:
        """It is in the next one, in which nobody has made a step yet."""


@dataclass
class CommitDuties:
    """What is done at a state's commits besides keeping its values."""

    count: int = 0
    """How often all ranks have come to a commit together."""
    saver: Saver | None = None
    """Makes cuts of some commits: see `run` and `elastic.save`."""
    feeding: Feeds | None = None
    """Has newcomers catch up before they join: see `run`."""


def duties_of(state: State) -> CommitDuties:
    """Not an attribute with a name of its own: those belong to the values that a script gives to a state."""
    return state._duties


class State:
    """Base of all. What derives from it says how its values are saved, restored and synchronized."""

    def __init__(
        self, bcast_object: Callable[..., Any] | None = None, get_rank: Callable[[], int] | None = None
    ) -> None:
        """`bcast_object` and `get_rank` are Horovod's; by default those of this package."""
        self._bcast_object = bcast_object or broadcast_object
        self._get_rank = get_rank or _runtime.rank
        self._reset_callbacks: list[Callable[[], None]] = []
        self._duties = CommitDuties()

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """These are called, in order, whenever the world has changed, before the state is synchronized."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """The world has changed: resets what depends on it, then calls the callbacks."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """Keeps the values as they are, to be restored after a loss. Blocks until all ranks have come here.

        Costs a copy of the state, and a sum of a few numbers. Raises HostsUpdatedInterrupt on all ranks if others wait
        to join, or one has died without whom servers have finished the step, and what a sum raises.
        """
        # All ranks have come here once the sum is there. So if one of them dies, each of the others restores this
        # commit or the one before, and they go on from that of rank 0, which knows what the others had done by then.
        saver, feeding = self._duties.saver, self._duties.feeding
        wanted, cut, newcomer = self._meet(begins=saver)
        self.save()
        if cut and saver is not None:
            saver.begin(cut, self.cut_content())
        if wanted:
            raise HostsUpdatedInterrupt
        if feeding is not None:
            feeding.begin(newcomer)

    def check_host_updates(self) -> None:
        """`commit` without keeping anything."""
        wanted, _, _ = self._meet()
        if wanted:
            raise HostsUpdatedInterrupt

    def finish_cut(self) -> None:
        """Blocks until the cut under way, if there is one, is whole or given up on all ranks. All ranks call it."""
        saver = self._duties.saver
        if saver is None:
            return
        for _ in ("all have written", "rank 0 has made it a cut"):
            saver.wait()
            self._meet()

    def save(self) -> None:
        """Keeps the values in this process."""
        raise NotImplementedError

    def restore(self) -> None:
        """Takes the values that were saved last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Takes those of rank 0. All ranks must call it."""
        raise NotImplementedError

    def reset(self) -> None:
        """What depends on the world is made anew. Nothing, by default."""

    def cut_content(self) -> CutContent:
        """What the last commit has kept, to be written to disk: nobody changes it afterwards. All ranks call it."""
        raise InvalidArgumentError(f"a {type(self).__name__} has no cut_content(): use a TorchState, or define it")

    def resume_from_cut(self, common: Mapping[str, Any], owns: Owns) -> None:  # noqa: ARG002 - for those that define it
        """Takes, and keeps, what a cut has."""
        raise InvalidArgumentError(f"a {type(self).__name__} has no resume_from_cut(): use a TorchState, or define it")

    def kept_on_servers(self) -> Mapping[str, KeptOnServers]:
        """What servers keep of it, by name."""
        return {}

    def _meet(self, begins: Saver | None = None) -> tuple[bool, int, int]:
        """Whether others come or have gone; the number of the cut that `begins` has to begin, or 0; and that of the
        newest newcomer of whom all ranks have heard, or 0."""
        cut = begins.order() if begins is not None and self._get_rank() == 0 else 0
        duties = self._duties
        writing, settled = (duties.saver.writing, duties.saver.settled) if duties.saver is not None else (0, 0)
        heard = duties.feeding.heard if duties.feeding is not None else 0
        rows = exchange([changes(), cut, writing, settled, heard, *self._progress()])
        self._hear_progress([row[5:] for row in rows])
        if duties.saver is not None:
            duties.saver.hear([row[2] for row in rows], rows[0][3])
        duties.count += 1
        return any(row[0] for row in rows), rows[0][1], min(row[4] for row in rows)

    def _progress(self) -> list[int]:
        """Numbers that rank 0 keeps of each rank."""
        return []

    def _hear_progress(self, ranks: list[list[int]]) -> None:
        """Those of all ranks."""


class ObjectState(State):
    """Any picklable values, as attributes: `ObjectState(epoch=0, batch=0).epoch`."""

    def __init__(
        self,
        bcast_object: Callable[..., Any] | None = None,
        get_rank: Callable[[], int] | None = None,
        **values: Any,
    ) -> None:
        super().__init__(bcast_object, get_rank)
        self._saved = dict(values)
        self._take(self._saved)

    def save(self) -> None:
        """See State."""
        self._saved = {name: deepcopy(getattr(self, name)) for name in self._saved}

    def restore(self) -> None:
        """See State."""
        self._take(self._saved)

    def sync(self) -> None:
        """See State."""
        if not self._saved:
            return
        self.save()
        self._saved = self._bcast_object(self._saved, root_rank=0)
        self._take(self._saved)

    def cut_content(self) -> CutContent:
        """See State."""
        return CutContent(self._saved, {"random": random_states(), "values": {}, "residuals": {}})

    def resume_from_cut(self, common: Mapping[str, Any], owns: Owns) -> None:  # noqa: ARG002 - plain values are all ranks'
        """See State. Values that the cut has not stay as they are."""
        self._saved.update({name: common[name] for name in self._saved if name in common})
        self._take(self._saved)

    def _take(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self, name, deepcopy(value))
