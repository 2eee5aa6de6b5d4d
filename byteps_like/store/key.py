"""A store key: a value under a policy, a way of combining, and an update. The reference of what servers do with one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from byteps_like.errors import InvalidArgumentError, MismatchError
from byteps_like.store.combine import AgeFactor, factors
from byteps_like.store.ledger import Event, Ledger, Version
from byteps_like.store.policies.policy import Contribution, Policy
from byteps_like.store.updates.update import Values, ValueUpdate, is_finite


class Applied(IntEnum):
    """What became of a contribution, as its source is told; the numbers travel."""

    COUNTED = 0
    LATE = 1
    HELD = 2
    NOT_FINITE = 3


@dataclass(frozen=True)
class Combining:
    """How the contributions of a version become one gradient. See combine.factors."""

    combine: str = "mean"
    age: str | AgeFactor | None = None
    damp: str | AgeFactor | None = None


@dataclass(frozen=True)
class PushAnswer:
    """For the source of a contribution."""

    push: Contribution
    applied: Applied
    version: int
    """The version that it is part of; where it is of none, the one in force."""


@dataclass
class StoreKey:
    """A value of fp32, fp64 or int64 that sources push to. Times are seconds of any one clock. Not thread-safe."""

    value: Values
    policy: Policy
    sources: Iterable[int]
    update: ValueUpdate
    combining: Combining = field(default_factory=Combining)

    def __post_init__(self) -> None:
        self.state = self.update.fresh_state(self.value)
        self.ledger = Ledger(self.policy, self.sources)
        self._staged: dict[Contribution, tuple[Values, float | None]] = {}

    def push(self, push: Contribution, gradient: Values, now: float, lr: float | None = None) -> list[PushAnswer]:
        """A contribution has come, whole, of the value's shape and type. Who can be answered by now, in order.

        Raises CorruptError as Ledger.push, and InvalidArgumentError or MismatchError for one that can't be combined:
        then it has not come.
        """
        self._check(push, gradient)
        self._check_rate(push, lr)
        if push.clock == self.ledger.clock(push.source):
            self._staged[push] = gradient, lr
        answers = self._answered(self.ledger.push(push, now))
        held = push in self._staged and push not in self.ledger.open.pushes.values()
        return [*answers, PushAnswer(push, Applied.HELD, self.ledger.version)] if held else answers

    def pass_time(self, now: float) -> list[PushAnswer]:
        """It is `now`."""
        return self._answered(self.ledger.pass_time(now))

    def lose(self, source: int, now: float) -> list[PushAnswer]:
        """A source has left."""
        return self._answered(self.ledger.lose(source, now))

    def read(self, reader: int) -> Values | None:
        """The value, a copy; None if `reader` has to wait."""
        return self.value.copy() if self.ledger.may_read(reader) else None

    def _check(self, push: Contribution, gradient: Values) -> None:
        if (gradient.shape, gradient.dtype) != (self.value.shape, self.value.dtype):
            raise MismatchError(
                f"rank {push.source} has pushed {gradient.dtype} of shape {gradient.shape} to a key of"
                f" {self.value.dtype} of shape {self.value.shape}"
            )
        whole = self.combining.combine == "sum" and float(push.weight).is_integer()
        if np.issubdtype(self.value.dtype, np.integer) and not whole:
            raise InvalidArgumentError("contributions of integers can only be summed, with whole numbers as weights")

    def _check_rate(self, push: Contribution, lr: float | None) -> None:
        for other, (_, rate) in self._staged.items():
            if other.base == push.base and rate != lr:
                raise MismatchError(
                    f"rank {push.source} has pushed with lr={lr}, but rank {other.source} with lr={rate}, both computed"
                    f" on version {push.base}: all ranks must have one schedule"
                )

    def _answered(self, events: Sequence[Event]) -> list[PushAnswer]:
        answers: list[PushAnswer] = []
        for event in events:
            if isinstance(event, Version):
                answers += self._applied(event)
            else:
                del self._staged[event.push]
                answers.append(PushAnswer(event.push, Applied.LATE, self.ledger.version))
        return answers

    def _applied(self, version: Version) -> list[PushAnswer]:
        staged = {push: self._staged.pop(push) for push in version.pushes}
        finite = tuple(push for push in version.pushes if is_finite(staged[push][0]))
        if finite:
            made = Version(version.number, finite)
            gradient = self._combined(made, [staged[push][0] for push in finite])
            rate = staged[finite[-1]][1]  # of one schedule, the newest
            self.value, self.state = self.update.apply(self.value, self.state, gradient, rate, version.number)
        return [
            PushAnswer(push, Applied.COUNTED if push in finite else Applied.NOT_FINITE, version.number)
            for push in version.pushes
        ]

    def _combined(self, version: Version, gradients: Sequence[Values]) -> Values:
        way, kind = self.combining, self.value.dtype.type
        total = np.zeros_like(self.value)
        for factor, gradient in zip(factors(version, way.combine, way.age, way.damp), gradients, strict=True):
            total += kind(factor) * gradient
        return total
