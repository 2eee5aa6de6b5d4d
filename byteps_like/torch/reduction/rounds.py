"""The rounds of a reducer's gradients, as a state machine."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Protocol

import torch

from byteps_like.torch.gradients.bucket import Bucket, Departed
from byteps_like.torch.gradients.slot import Slot, changed_in_flight, too_many_passes
from byteps_like.torch.reduction.parameter_set import ParameterSet
from byteps_like.torch.reduction.sparse_router import SparseRouter


class Phase(Enum):
    """Where a round is: IDLE -> COUNTING -> SENDING -> IDLE, or -> DEPARTED -> IDLE."""

    IDLE = "no backward has come by"
    COUNTING = "backward has reached parameters, but no gradient in a bucket is ready"
    SENDING = "at least one is"
    DEPARTED = "all is sent, and somebody else waits for it"


class Companion(Protocol):
    """Gradients that are sent and land by themselves, in the rounds of the buckets."""

    @property
    def active(self) -> bool:
        """Whether any has been sent."""

    @property
    def touched(self) -> bool:
        """Whether a backward has reached any."""

    def finish(self, discard: bool) -> None:
        """Sends what was not sent yet."""

    def complete(self, discard: bool) -> None:
        """Blocks until all have landed, and makes them every `p.grad` unless it is a discard."""

    def reset(self) -> None:
        """A new round begins."""


class Rounds:
    """Takes the gradients of `parameters`, and those that `sparse` and `beside` have, through round after round.

    Owns the phase. All ranks must end rounds equally often.
    """

    def __init__(self, parameters: ParameterSet[Bucket], sparse: SparseRouter, beside: Companion | None = None) -> None:
        self.phase = Phase.IDLE
        self._parameters, self._sparse = parameters, sparse
        self._beside = [] if beside is None else [beside]

    @property
    def active(self) -> bool:
        """Whether a round is under way: at least one gradient was made ready."""
        return self.phase is Phase.SENDING or any(item.active for item in self._beside)

    @property
    def departed(self) -> bool:
        """Whether the last round is still on its way, for somebody else to wait for."""
        return self.phase is Phase.DEPARTED

    @property
    def touched(self) -> bool:
        """Whether a backward has reached any parameter since the last round."""
        return self.phase in (Phase.COUNTING, Phase.SENDING) or any(item.touched for item in self._beside)

    def accumulated(self, parameter: torch.Tensor, passes: int) -> None:
        """Backward has added to the gradient; the `passes`-th time makes it ready.

        If it was sent already, its round is discarded, or InvalidArgumentError raised unless all that were sent have
        been cleared.
        """
        if parameter in self._sparse:
            self._touch()
            return
        bucket, slot = self._parameters[parameter]
        if slot.ready:
            self._repeated(slot, passes)
        slot.count()
        if slot.passes < passes:
            self._touch()
            return
        try:
            bucket.ready(slot)
        finally:  # a slot that isn't ready has no part in this round: the one before has failed
            if slot.ready:
                self.phase = Phase.SENDING
            else:
                self._touch()

    def _touch(self) -> None:
        if self.phase is Phase.IDLE:
            self.phase = Phase.COUNTING

    def _repeated(self, slot: Slot, passes: int) -> None:
        if not all(other.cleared() for other in self._parameters.slots() if other.ready):
            raise too_many_passes(slot, passes)
        self.end(discard=True)

    def end(self, discard: bool) -> None:
        """Sends what is missing, blocks until all has landed, and makes it every `p.grad` unless it is a discard.

        Raises InvalidArgumentError if a gradient was changed after it was sent, MismatchError if some ranks discard
        the round and others don't, and the job's error.
        """
        buckets = self._parameters.buckets
        try:
            for item in self._beside:
                item.finish(discard)
            for bucket in buckets:
                bucket.finish(discard)
            self._sparse.start(discard)
            for bucket in buckets:
                bucket.wait()
            self._sparse.wait()
            for bucket in buckets:
                bucket.check_agreed()
            if not discard:
                self._land()
            for item in self._beside:
                item.complete(discard)
        finally:
            self.reset()

    def _land(self) -> None:
        self._check_unchanged()
        for bucket in self._parameters.buckets:
            bucket.land()
        for bucket in self._parameters.buckets:
            bucket.settle()
        self._sparse.land(self._parameters.buckets)

    def _check_unchanged(self, before_raising: Callable[[], None] = lambda: None) -> None:
        for slot in self._parameters.slots():
            if slot.changed():
                before_raising()
                raise changed_in_flight(slot)

    def depart(self) -> list[Departed] | None:
        """Ends the round without waiting for what is in flight; `landed` must follow before the next gradient.

        None, and nothing has been done, if that can't be: for the first round of a bucket, after which its gradients
        move. Raises InvalidArgumentError as `end` does.
        """
        buckets = self._parameters.buckets
        if not all(bucket.settled for bucket in buckets):
            return None
        try:
            for bucket in buckets:
                bucket.finish(discard=False)
            self._sparse.start(discard=False)
            self._check_unchanged(self._wait)
            departed = [*(bucket.depart() for bucket in buckets), *self._sparse.depart()]
        finally:
            self.reset()
        self.phase = Phase.DEPARTED
        return departed

    def _wait(self) -> None:
        for bucket in self._parameters.buckets:
            bucket.wait()
        self._sparse.wait()

    def landed(self) -> bool:
        """The round that departed has landed, and all its gradients were read. False if there was none. Idempotent."""
        if self.phase is not Phase.DEPARTED:
            return False
        self.phase = Phase.IDLE
        for bucket in self._parameters.buckets:
            bucket.landed()
        return True

    def reset(self) -> None:
        """A new round begins: passes that were counted are forgotten. Nothing may be on its way but what departed."""
        self.phase = Phase.DEPARTED if self.phase is Phase.DEPARTED else Phase.IDLE
        for bucket in self._parameters.buckets:
            bucket.reset()
        for item in self._beside:
            item.reset()
