"""A store key: a value under a policy, a way of combining, and an update. The reference of what servers do with one.

The native twin (server/store/store_key.h) gives the same answers and the same bits. So each contribution is multiplied
by its factor, rounded once to the value's type, and the products are added from the first to the last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce

import numpy as np

from byteps_like.errors import CorruptError, InvalidArgumentError, MismatchError
from byteps_like.store.combining.combining import Combining
from byteps_like.store.combining.weighed import Weighed
from byteps_like.store.ledger import Event, Ledger, Version
from byteps_like.store.policies.policy import Contribution, Policy
from byteps_like.store.updates.plain import NoUpdate
from byteps_like.store.updates.update import Values, ValueUpdate, is_finite
from byteps_like.wire.note import Applied


@dataclass(frozen=True)
class PushAnswer:
    """For the source of a contribution."""

    push: Contribution
    applied: Applied
    version: int
    """The version that it is part of; where it is of none, the one in force when this was first said."""


@dataclass(frozen=True)
class _Staged:
    push: Contribution
    gradient: Values
    lr: float | None
    is_finite: bool


_Id = tuple[int, int]
"""Source and clock of a contribution."""


def check_rounds(policy: Policy, update: ValueUpdate) -> None:
    """Raises InvalidArgumentError where an update needs rounds, and the policy has none."""
    if isinstance(update, NoUpdate) and not policy.has_rounds:
        raise InvalidArgumentError(
            f"update none gives what a round has combined, and {policy.name} has no rounds: use bsp, k_of_n or backup,"
            " or another update"
        )


@dataclass
class StoreKey:
    """A value of fp32, fp64 or int64 that sources push to. Times are seconds of any one clock. Not thread-safe.

    A source may have missed an answer, because a link broke: then it pushes the contribution again. The key keeps each
    answer until its source has said that it has it (`heard`), and gives the same again; it never guesses one. That a
    contribution is held is no final answer: it is said when it comes, and again when it is repeated.

    Raises InvalidArgumentError where the update or the way of combining has nothing to do with the value's type.
    """

    value: Values
    policy: Policy
    sources: Iterable[int]
    update: ValueUpdate
    combining: Combining = field(default_factory=Weighed)

    def __post_init__(self) -> None:
        check_rounds(self.policy, self.update)
        if not self.update.takes(self.value.dtype):
            raise InvalidArgumentError(f"the update takes no values of {self.value.dtype}")
        self._check_integers(self.combining.adds_integers)
        self.state = self.update.fresh_state(self.value)
        self.ledger = Ledger(self.policy, self.sources)
        self._staged: dict[_Id, _Staged] = {}
        self._unheard: dict[_Id, PushAnswer] = {}

    def push(self, push: Contribution, gradient: Values, now: float, lr: float | None = None) -> list[PushAnswer]:
        """A contribution has come, whole, of the value's shape and type. Who can be answered by now, in order.

        Raises CorruptError as Ledger.push, and if it comes from who is no source, or again after its answer was heard;
        InvalidArgumentError or MismatchError for one that can't be combined. Then it has not come.
        """
        if not self.ledger.knows(push.source):
            raise CorruptError(f"rank {push.source} has pushed to a key of which it is no source")
        if push.clock < self.ledger.clock(push.source):
            return self._again(push)
        self._check(push, gradient, lr)
        events = self.ledger.push(push, now)
        self._staged[_id(push)] = _Staged(push, gradient, lr, is_finite(gradient))
        return self._answered(events) + self._held(push)

    def pass_time(self, now: float) -> list[PushAnswer]:
        """It is `now`."""
        return self._answered(self.ledger.pass_time(now))

    def lose(self, source: int, now: float) -> list[PushAnswer]:
        """A source has left. What it has pushed counts, but nobody waits for it any more."""
        events = self.ledger.lose(source, now)
        self._unheard = {one: answer for one, answer in self._unheard.items() if one[0] != source}
        return self._answered(events)

    def change(self, policy: Policy, now: float) -> list[PushAnswer]:
        """From now on `policy` decides, also on what is here. Raises InvalidArgumentError for one without rounds where
        the update needs them."""
        check_rounds(policy, self.update)
        self.policy = policy
        return self._answered(self.ledger.change(policy, now))

    def rest(self, source: int, now: float) -> list[PushAnswer]:
        """A source pushes nothing until it wakes: nobody waits for it meanwhile."""
        return self._answered(self.ledger.rest(source, now))

    def wake(self, source: int) -> None:
        """It goes on."""
        self.ledger.wake(source)

    def join(self, source: int) -> int:
        """A source has come: the clock of its first push."""
        return self.ledger.join(source)

    def heard(self, source: int, clock: int) -> None:
        """A source has had the answers to its contributions before `clock`."""
        past = [one for one in self._unheard if one[0] == source and one[1] < clock]
        for one in past:
            del self._unheard[one]

    def read(self, reader: int) -> Values | None:
        """The value, a copy; None if `reader` has to wait."""
        return self.value.copy() if self.ledger.may_read(reader) else None

    def _check(self, push: Contribution, gradient: Values, lr: float | None) -> None:
        if (gradient.shape, gradient.dtype) != (self.value.shape, self.value.dtype):
            raise MismatchError(
                f"rank {push.source} has pushed {gradient.dtype} of shape {gradient.shape} to a key of"
                f" {self.value.dtype} of shape {self.value.shape}"
            )
        weight = self.combining.check_weight(push.weight)
        self._check_integers(float(weight).is_integer() and weight < 2.0**63)
        self.update.rate(lr)
        self._check_rate(push, lr)

    def _check_integers(self, adds: bool) -> None:
        if np.issubdtype(self.value.dtype, np.integer) and not adds:
            raise InvalidArgumentError("contributions of integers can only be summed, with whole numbers as weights")

    def _check_rate(self, push: Contribution, lr: float | None) -> None:
        for _, other in sorted(self._staged.items()):
            if other.push.base == push.base and other.lr != lr:
                raise MismatchError(
                    f"rank {push.source} has pushed with lr={lr}, but rank {other.push.source} with lr={other.lr}, both"
                    f" computed on version {push.base}: all ranks must have one schedule"
                )

    def _again(self, push: Contribution) -> list[PushAnswer]:
        answer = self._unheard.get(_id(push))
        if answer is not None:
            return [answer]
        if _id(push) not in self._staged:
            raise CorruptError(
                f"rank {push.source} has pushed its contribution {push.clock} again, but it has said that it had the"
                " answer, or it has joined later"
            )
        return self._held(push)

    def _held(self, push: Contribution) -> list[PushAnswer]:
        staged = self._staged.get(_id(push))
        if staged is None or staged.push in self.ledger.open.pushes.values():
            return []
        return [PushAnswer(staged.push, Applied.HELD, self.ledger.version)]

    def _answered(self, events: Sequence[Event]) -> list[PushAnswer]:
        answers: list[PushAnswer] = []
        for event in events:
            answers += self._applied(event) if isinstance(event, Version) else [self._late(event.push)]
        here = self.ledger.clocks.keys() | self.ledger.resting
        self._unheard |= {_id(one.push): one for one in answers if one.push.source in here}
        return answers

    def _late(self, push: Contribution) -> PushAnswer:
        del self._staged[_id(push)]
        return PushAnswer(push, Applied.LATE, self.ledger.version)

    def _applied(self, version: Version) -> list[PushAnswer]:
        staged = [self._staged.pop(_id(push)) for push in version.pushes]
        finite = [one for one in staged if one.is_finite]
        applied = bool(finite) and self._apply(version.number, finite)
        return [
            PushAnswer(one.push, Applied.COUNTED if applied and one.is_finite else Applied.NOT_FINITE, version.number)
            for one in staged
        ]

    def _apply(self, number: int, staged: Sequence[_Staged]) -> bool:
        """False if they add up to what is not finite, or to nothing: then nothing has changed."""
        found = self.combining.factors(Version(number, tuple(one.push for one in staged)))
        gradient = self._combined(found, staged) if found else None
        if gradient is None or not is_finite(gradient):
            return False
        newest = max(staged, key=lambda one: one.push.base)
        self.value, self.state = self.update.apply(self.value, self.state, gradient, newest.lr, number)
        return True

    def _combined(self, factors: Sequence[float], staged: Sequence[_Staged]) -> Values:
        kind = self.value.dtype.type
        with np.errstate(over="ignore", invalid="ignore"):
            products: list[Values] = [kind(one) * push.gradient for one, push in zip(factors, staged, strict=True)]
            return reduce(np.add, products)


def _id(push: Contribution) -> _Id:
    return push.source, push.clock
