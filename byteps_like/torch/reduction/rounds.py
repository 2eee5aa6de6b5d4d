"""The rounds of a reducer's gradients, as a state machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any, NoReturn, Protocol

import torch

from byteps_like.errors import MismatchError
from byteps_like.torch.gradients.bucket import Bucket, Departed, Place
from byteps_like.torch.gradients.slot import changed_in_flight, first_changed, too_many_passes
from byteps_like.torch.reduction.beside import Accumulated, Beside
from byteps_like.torch.reduction.parameter_set import ParameterSet


class Phase(Enum):
    """Where a round is: IDLE -> COUNTING -> SENDING -> IDLE, or -> DEPARTED -> IDLE."""

    IDLE = "no backward has come by"
    COUNTING = "backward has reached parameters, but no gradient is ready"
    SENDING = "at least one is"
    DEPARTED = "all is sent, and somebody else waits for it"


class Taker(Protocol):
    """Whoever sends such gradients: a Bucket, or gradients beside them."""

    def ready(self, slot: Any) -> None:
        """The gradient of `slot`, one of its own, is complete on this rank: sends what was waiting for it only."""


class Rounds:
    """Takes the gradients of `parameters`, and those `beside` their buckets, through round after round.

    Owns the phase. All ranks must end rounds equally often. `came_sparse` is told of gradients that have landed from a
    bucket though they came sparse on some rank.
    """

    def __init__(
        self, parameters: ParameterSet[Bucket], beside: Sequence[Beside], came_sparse: Callable[[Place], None]
    ) -> None:
        self.phase = Phase.IDLE
        self.places = parameters.places
        self._parameters, self._beside, self._came_sparse = parameters, beside, came_sparse

    @property
    def _all(self) -> list[Bucket | Beside]:
        return [*self._parameters.buckets, *self._beside]

    @property
    def active(self) -> bool:
        """Whether a round is under way: at least one gradient was made ready."""
        return self.phase is Phase.SENDING

    @property
    def departed(self) -> bool:
        """Whether the last round is still on its way, for somebody else to wait for."""
        return self.phase is Phase.DEPARTED

    @property
    def touched(self) -> bool:
        """Whether a backward has reached any parameter since the last round."""
        return self.phase in (Phase.COUNTING, Phase.SENDING)

    def accumulated(self, parameter: torch.Tensor, passes: int) -> None:
        """Backward has made, or added to, `p.grad`: as `arrived`, for gradients in buckets and beside them."""
        place = self.places.get(id(parameter))
        if place is None:
            self._elsewhere(parameter)
            return
        bucket, slot = place
        if slot.ready:
            self._repeated(slot, passes)
        # As Slot.count and `arrived` say it: here calls would cost more than what they do.
        grad = parameter.grad
        slot.passes = slot.passes + 1 if grad is slot.bound else 1
        slot.bound, slot.version = grad, 0 if grad is None else grad._version
        if self.phase is Phase.IDLE:
            self.phase = Phase.COUNTING
        if slot.passes < passes:
            return
        try:
            bucket.ready(slot)
        finally:
            if slot.ready:
                self.phase = Phase.SENDING

    def _elsewhere(self, parameter: torch.Tensor) -> None:
        with torch.no_grad():
            for item in self._beside:
                if parameter in item:
                    item.accumulated(parameter)
        # If it is in neither, it was frozen when it should have returned to a bucket: the round's end finds it a place.
        self._touch()

    def arrived(self, taker: Taker, slot: Accumulated, passes: int) -> None:
        """Backward has made, or added to, the gradient of `slot`; the `passes`-th time makes it ready.

        If it was sent already, its round is discarded, or InvalidArgumentError raised unless all that were sent have
        been cleared.
        """
        if slot.ready:
            self._repeated(slot, passes)
        slot.count()
        if slot.passes < passes:
            self._touch()
            return
        try:
            taker.ready(slot)
        finally:  # a slot that isn't ready has no part in this round: the one before has failed
            if slot.ready:
                self.phase = Phase.SENDING
            else:
                self._touch()

    def _touch(self) -> None:
        if self.phase is Phase.IDLE:
            self.phase = Phase.COUNTING

    def _repeated(self, slot: Accumulated, passes: int) -> None:
        if not all(other.cleared() for other in self._sent()):
            raise too_many_passes(slot, passes)
        with torch.no_grad():
            self.end(discard=True)

    def _sent(self) -> Iterator[Accumulated]:
        """The gradients of the round under way that were sent already, in buckets and beside them."""
        yield from (slot for slot in self._parameters.slots() if slot.ready)
        for item in self._beside:
            yield from item.sent

    def end(self, discard: bool) -> None:
        """Sends what is missing, blocks until all has landed, and makes it every `p.grad` unless it is a discard.

        Raises InvalidArgumentError if a gradient was changed after it was sent, MismatchError if some ranks discard
        the round and others don't, and the job's error.
        """
        if not discard:
            self._check_unchanged()
        try:
            self._finish(discard)
            self._wait()
            for item in self._all:
                item.check_agreed()
            if not discard:
                self._land()
        finally:
            self.reset()

    def _finish(self, discard: bool) -> None:
        for bucket in self._parameters.buckets:
            bucket.finish(discard)
        for item in self._beside:
            item.start(discard)

    def _wait(self) -> None:
        for item in self._all:
            item.wait()

    def _land(self) -> None:
        buckets = self._parameters.buckets
        for bucket in buckets:
            bucket.land()
        for bucket in buckets:
            bucket.settle()
        for slot in [slot for bucket in buckets for slot in bucket.sparse()]:
            self._came_sparse(slot)
        for item in self._beside:
            item.land()

    def _check_unchanged(self) -> None:
        for bucket in self._parameters.buckets:
            if (changed := first_changed(bucket.slots)) is not None:
                self._withdraw(changed_in_flight(changed))
        for slot in (slot for item in self._beside for slot in item.sent):
            if slot.changed():
                self._withdraw(changed_in_flight(slot))

    def _withdraw(self, error: Exception) -> NoReturn:
        """Raises `error` after throwing the round away: so the other ranks, which don't know of it, have all that they
        wait for, and are told."""
        with suppress(MismatchError):
            self.end(discard=True)
        raise error

    def depart(self) -> list[Departed] | None:
        """Ends the round without waiting for what is in flight; `landed` must follow before the next gradient.

        None, and nothing has been done, if that can't be: for the first round of a bucket, after which its gradients
        move. Raises InvalidArgumentError as `end` does.
        """
        buckets = self._parameters.buckets
        if not all(bucket.settled for bucket in buckets):
            return None
        self._check_unchanged()
        try:
            self._finish(discard=False)
            departed = [bucket.depart() for bucket in buckets]
            departed += [one for item in self._beside for one in item.depart()]
        finally:
            self.reset()
        self.phase = Phase.DEPARTED
        return departed

    def landed(self) -> bool:
        """The round that departed has landed, and all its gradients were read. False if there was none. Idempotent."""
        if self.phase is not Phase.DEPARTED:
            return False
        self.phase = Phase.IDLE
        for item in self._all:
            item.landed()
        return True

    def reset(self) -> None:
        """A new round begins: passes that were counted are forgotten. Nothing may be on its way but what departed."""
        self.phase = Phase.DEPARTED if self.phase is Phase.DEPARTED else Phase.IDLE
        for item in self._all:
            item.reset()
