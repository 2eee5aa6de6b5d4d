"""A step whose gradients are still on their way: each parameter is updated when its own have landed.

There is no thread: updates run on the thread that asks for a parameter, so parameters and the optimizer's state change
only inside calls of the training thread, and errors are raised there. While it would wait, it updates what has landed.

Where the worker copies gradients of a device by itself the current stream waits in the host's place, layer by layer, as
the forward asks for them: updates are queued behind that wait. The host waits for the control elements, and before the
next round begins, for all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch

from byteps_like.errors import NotInitializedError
from byteps_like.torch.device.flight import DeviceFlight
from byteps_like.torch.device.inflight import call_all, park
from byteps_like.torch.gradients.bucket import Departed, Landing, Place
from byteps_like.torch.job import runtime as _runtime
from byteps_like.worker.api import Handle

Advance = Callable[[list[torch.Tensor]], None]
"""Runs the optimizer's step on some parameters, whose `p.grad` are there."""

CameSparse = Callable[[Place], None]
"""Told of a gradient that has landed as a dense one, though it came sparse on some rank. May change its `p.grad`."""


class Leg:
    """Partitions that were sent together; `updates` are those that can't be made before they have landed."""

    def __init__(self, bucket: Landing, run: range, handle: Handle) -> None:
        self.run, self.handle = run, handle
        self.priority = bucket.priority(run)
        self.landed = False
        self.updates: list[Update] = []
        self._streams: set[int] = set()

    @property
    def flies(self) -> bool:
        """Whether streams wait for it in the host's place."""
        return isinstance(self.handle, DeviceFlight) and self.handle.streams_wait

    def follow(self) -> None:
        """What the current stream does from here on comes after it; the host waits where that can't be. Raises the
        error of one that has failed."""
        if not isinstance(self.handle, DeviceFlight):
            self.handle.wait()
        elif (stream := self.handle.stream) not in self._streams:
            self.handle.block()
            self._streams.add(stream)


class Update:
    """One parameter that is to be updated once `legs` have landed; `grad` was its `p.grad` at step()."""

    __slots__ = ("bucket", "grad", "legs", "missing", "slot")

    def __init__(self, bucket: Landing, slot: Place, legs: list[Leg]) -> None:
        self.bucket, self.slot, self.legs = bucket, slot, legs
        self.grad, slot.parameter.grad = slot.parameter.grad, None
        self.missing = len(legs)
        for leg in legs:
            leg.updates.append(self)

    def make_ready(self, told: Told, came_sparse: CameSparse) -> bool:
        """Makes the landed gradient `p.grad`; whether there is one: without, the parameter keeps its value."""
        self.slot.parameter.grad = self.grad
        self.bucket.land_one(self.slot, told.present[self.slot.index])
        if self.slot.index in told.sparse:
            came_sparse(self.slot)
        return self.slot.parameter.grad is not None


@dataclass(frozen=True)
class Told:
    """What the control elements of a bucket tell of its gradients, by their numbers."""

    present: list[bool]
    """Whether any rank had one."""
    sparse: frozenset[int]
    """Those that came sparse on some rank."""


class StepInFlight:
    """What one `step()` has left in flight, and the updates that wait for it.

    Takes every `p.grad`, which is None from here on. No update is made before the control elements of its bucket have
    landed, too, so none if a rank threw the round away; they travel with what the first layers need, before all else.
    Gradients without control elements of their own wait for those of all buckets.

    Not thread-safe: it belongs to the thread that trains. Dropped unfinished, it keeps the memory until all has landed,
    and has the rank stay in the job as long, since others wait for what it has sent.
    """

    def __init__(self, departed: Sequence[Departed], advance: Advance, came_sparse: CameSparse) -> None:
        self._advance, self._came_sparse = advance, came_sparse
        self._pid = os.getpid()
        self._left = _runtime.current().left
        self._legs: list[Leg] = []
        self._behind: list[Leg] = []
        """Which have landed as far as streams are concerned."""
        self._updates: dict[int, Update] = {}
        self._ready: list[Update] = []
        self._told: dict[int, Told] = {}
        self._buckets = [item.bucket for item in departed]
        by_part = [self._board(item) for item in departed]
        commits = [[legs[part] for part in item.bucket.commits] for item, legs in zip(departed, by_part, strict=True)]
        of_all = [leg for legs in commits for leg in legs]
        for bucket, legs, own in zip(self._buckets, by_part, commits, strict=True):
            self._expect(bucket, legs, own or of_all)
        # What goes first on the wire is looked at first.
        self._legs.sort(key=lambda leg: leg.priority, reverse=True)

    def _board(self, item: Departed) -> dict[int, Leg]:
        legs = [Leg(item.bucket, run, handle) for run, handle in item.flown]
        self._legs += legs
        return {part: leg for leg in legs for part in leg.run}

    def _expect(self, bucket: Landing, by_part: dict[int, Leg], commits: list[Leg]) -> None:
        known: dict[range, list[Leg]] = {}
        for slot in bucket.slots:
            if slot.parts not in known:
                known[slot.parts] = _distinct([*commits, *(by_part[part] for part in slot.parts)])
            self._updates[id(slot.parameter)] = Update(bucket, slot, known[slot.parts])

    def __del__(self) -> None:
        left = [leg.handle for leg in (*self._legs, *self._behind)]
        if left:
            self._left.add(park(left, [bucket.data for bucket in self._buckets]))

    @property
    def over(self) -> bool:
        """Whether everything has landed and all updates are made, or given up after an error."""
        return not self._legs and not self._updates and not self._behind

    def awaits(self, parameter: torch.Tensor) -> bool:
        """Whether `parameter` is still to be updated."""
        return id(parameter) in self._updates

    def wait_for(self, parameters: Iterable[torch.Tensor]) -> None:
        """Blocks until all of `parameters` are updated. Raises as `finish` does."""
        wanted = [self._updates[id(item)] for item in parameters if id(item) in self._updates]
        if wanted:
            self._complete(_distinct(leg for update in wanted for leg in update.legs))

    def finish(self) -> None:
        """Blocks until all updates are made, on a device until they are queued. Raises MismatchError if some ranks
        threw their gradients away, and the job's error; then the updates that were not made yet are given up."""
        if self._legs or self._updates:
            self._complete(list(self._legs))

    def land(self) -> None:
        """As `finish`, and the host waits for what streams wait for, too. Raises what that has failed with."""
        self.finish()
        behind, self._behind = self._behind, []
        call_all([leg.handle.wait for leg in behind])

    def _complete(self, wanted: list[Leg]) -> None:
        if self._pid != os.getpid():
            raise NotInitializedError(
                "this process was forked while updates of a step were in flight; call optimizer.synchronize() before"
            )
        # Asked for within a forward, whose modes are not the optimizer's.
        with torch.inference_mode(False), _no_autocast():
            try:
                for leg in wanted:
                    self._bring_in(leg)
                self._apply()
                for leg in () if self._updates else tuple(self._legs):
                    self._land(leg)
            except Exception as error:
                self._give_up(error)
                raise

    def _bring_in(self, leg: Leg) -> None:
        """Blocks until `leg` has landed; makes updates of others meanwhile."""
        while not leg.landed:
            landed = (
                None
                if leg.flies or leg.handle.done()
                else next((other for other in self._legs if other.handle.done()), None)
            )
            self._land(landed or leg)
            if landed is not None:
                self._apply()

    def _land(self, leg: Leg) -> None:
        if leg.landed:
            return
        leg.follow()
        leg.landed = True
        self._legs.remove(leg)
        if leg.flies:
            self._behind.append(leg)
        for update in leg.updates:
            update.missing -= 1
            if not update.missing:
                self._ready.append(update)

    def _apply(self) -> None:
        """Updates all whose gradients have landed, by one step of the optimizer over just these."""
        ready, self._ready = self._ready, []
        if not ready:
            return
        told = [self._hear(update.bucket) for update in ready]
        for leg in _distinct(leg for update in ready for leg in update.legs if leg.flies):
            leg.follow()  # it may have been another stream that asked for it
        # What the user has put there since step() belongs to the next one.
        later = [update.slot.parameter.grad for update in ready]
        with torch.no_grad():
            moved = [
                update.slot.parameter
                for update, heard in zip(ready, told, strict=True)
                if update.make_ready(heard, self._came_sparse)
            ]
        try:
            self._advance(moved)
        finally:
            for update, grad in zip(ready, later, strict=True):
                update.slot.parameter.grad = grad
                del self._updates[id(update.slot.parameter)]

    def _hear(self, bucket: Landing) -> Told:
        """Nothing is updated before it is known that all ranks go through with this step, and who had a gradient."""
        if id(bucket) not in self._told:
            for judge in [bucket] if bucket.commits else self._buckets:
                judge.check_agreed()
            sparse = frozenset(slot.index for slot in bucket.sparse())
            self._told[id(bucket)] = Told(bucket.present(), sparse)
        return self._told[id(bucket)]

    def _give_up(self, error: BaseException) -> None:
        """The memory may be used again once nothing is in flight any more; the first error is the one to raise."""
        lost = [update.slot.name for update in self._updates.values()]
        if lost:
            error.add_note(
                f"{len(lost)} parameters ({lost[0]}, ...) were not updated by the last step(), others may have been:"
                " go on from a checkpoint, or from another rank's state"
            )
        for leg in (*self._legs, *self._behind):
            try:
                leg.handle.wait()
            except Exception:  # noqa: BLE001 - it failed with the rest
                continue
        self._legs, self._behind, self._updates, self._ready = [], [], {}, []


@contextmanager
def _no_autocast() -> Iterator[None]:
    with ExitStack() as stack:
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def _distinct(legs: Iterable[Leg]) -> list[Leg]:
    return list(dict.fromkeys(legs))
