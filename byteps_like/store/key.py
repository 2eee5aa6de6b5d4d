"""A store key: a content (a dense value, or rows) under a policy, a way of combining, and an update. The reference of
what servers do with one.

The native twin (server/store/store_key.h) gives the same answers and the same bits. So each contribution is multiplied
by its factor, rounded once to the value's type, and the products are added from the first to the last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, NoReturn

import numpy as np

from byteps_like.errors import CorruptError, InvalidArgumentError, MismatchError
from byteps_like.store.combining.combining import Combining
from byteps_like.store.combining.weighed import Weighed
from byteps_like.store.content import Brought, Content, Dense, VersionCall
from byteps_like.store.ledger import Event, Ledger, Version
from byteps_like.store.policies.policy import Contribution, Policy
from byteps_like.store.updates.function import FunctionUpdate
from byteps_like.store.updates.plain import NoUpdate
from byteps_like.store.updates.update import Values, ValueUpdate
from byteps_like.wire.note import Applied


@dataclass(frozen=True)
class PushAnswer:
    """For the source of a contribution."""

    push: Contribution
    applied: Applied
    version: int
    """The version that it is part of; where it is of none, the one in force when this was first said."""
    contributors: tuple[int, ...] = ()
    """The sources of what that version is made of, ascending."""


@dataclass(frozen=True)
class _Staged(Generic[Brought]):
    push: Contribution
    gradient: Brought | None
    """None: nothing."""
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


class ContentKey(Generic[Brought]):
    """A content that sources push to. Times are seconds of any one clock. Not thread-safe.

    A source may have missed an answer, because a link broke: then it pushes the contribution again. The key keeps each
    answer until its source has said that it has it (`heard`), and gives the same again; it never guesses one. That a
    contribution is held is no final answer: it is said when it comes, and again when it is repeated.

    Raises InvalidArgumentError where the update or the way of combining has nothing to do with the content's type.
    """

    def __init__(
        self,
        content: Content[Brought],
        policy: Policy,
        sources: Iterable[int],
        update: ValueUpdate,
        combining: Combining | None = None,
        functions: Sequence[FunctionUpdate] = (),
    ) -> None:
        """`functions`: without state, which contributions may ask for instead of the update."""
        self.content, self.policy, self.sources, self.update = content, policy, sources, update
        self._ways: tuple[ValueUpdate, ...] = (update, *functions)
        self.combining = Weighed() if combining is None else combining
        check_rounds(policy, update)
        if not update.takes(content.dtype):
            raise InvalidArgumentError(f"the update takes no values of {content.dtype}")
        self._check_integers(self.combining.adds_integers)
        self.ledger = Ledger(policy, sources)
        self._staged: dict[_Id, _Staged[Brought]] = {}
        self._unheard: dict[_Id, PushAnswer] = {}

    def push(
        self, push: Contribution, gradient: Brought | None, now: float, lr: float | None = None
    ) -> list[PushAnswer]:
        """A contribution has come, whole, as the content wants it; of one that is idle, None. Who can be answered by
        now, in order.

        Raises CorruptError as Ledger.push, and if it comes from who is no source, or again after its answer was heard;
        InvalidArgumentError or MismatchError for one that can't be combined. Then it has not come.
        """
        if not self.ledger.knows(push.source):
            raise CorruptError(f"rank {push.source} has pushed to a key of which it is no source")
        if push.clock < self.ledger.clock(push.source):
            return self._again(push)
        self._check(push, gradient, lr)
        events = self.ledger.push(push, now)
        is_finite = gradient is None or self.content.is_finite(gradient)
        self._staged[_id(push)] = _Staged(push, gradient, lr, is_finite)
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

    def _check(self, push: Contribution, gradient: Brought | None, lr: float | None) -> None:
        if gradient is not None:
            self.content.check(push.source, gradient)
        weight = self.combining.check_weight(push.weight)
        self.combining.check_block(push.last)
        self._check_integers(float(weight).is_integer() and weight < 2.0**63)
        self.update.rate(lr)
        self._check_alike(push, lr)

    def _check_integers(self, adds: bool) -> None:
        if np.issubdtype(self.content.dtype, np.integer) and not adds:
            raise InvalidArgumentError("contributions of integers can only be summed, with whole numbers as weights")

    def _check_alike(self, push: Contribution, lr: float | None) -> None:
        """One version can't be made in two ways."""
        for _, other in sorted(self._staged.items()):
            if push.idle or other.push.idle or other.push.base != push.base:
                continue
            if other.lr != lr:
                self._differ(push, other.push, f"lr={lr}", f"lr={other.lr}", "all ranks must have one schedule")
            if other.push.function != push.function:
                self._differ(push, other.push, self._way(push), self._way(other.push),
                             "all ranks must take the same in a round")  # fmt: skip

    def _way(self, push: Contribution) -> str:
        found = self._ways[push.function]
        return f"function {found.of}" if isinstance(found, FunctionUpdate) and push.function else "its update"

    def _differ(self, push: Contribution, other: Contribution, own: str, others: str, remedy: str) -> NoReturn:
        raise MismatchError(
            f"rank {push.source} has pushed with {own}, but rank {other.source} with {others}, both computed on version"
            f" {push.base}: {remedy}"
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
        if staged is None or staged.push in self.ledger.open.pushes:
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
        finite = [one for one in staged if one.is_finite and not one.push.idle]
        applied = bool(finite) and self._apply(version.number, finite)
        made_of = tuple(sorted({one.push.source for one in finite})) if applied else ()
        return [
            PushAnswer(one.push, Applied.COUNTED if one.push.idle or (applied and one.is_finite) else
                       Applied.NOT_FINITE, version.number, made_of)
            for one in staged
        ]  # fmt: skip

    def _apply(self, number: int, staged: Sequence[_Staged[Brought]]) -> bool:
        """False if they add up to what is not finite, or to nothing: then nothing has changed."""
        brought = [one.gradient for one in staged if one.gradient is not None]
        found = self.combining.factors(Version(number, tuple(one.push for one in staged)))
        if self.policy.observes and len(staged) > 1:
            estimate = self.content.estimate(brought)
            if estimate is not None:
                self.ledger.observe(estimate)
        if not found:
            return False
        newest = max(staged, key=lambda one: one.push.base)
        made_of = [one.push for one in staged]
        update = self._ways[newest.push.function]
        return self.content.apply(VersionCall(number, brought, found, newest.lr, update, made_of))


class StoreKey(ContentKey[Values]):
    """A dense value of fp32, fp64 or int64."""

    def __init__(
        self,
        value: Values,
        policy: Policy,
        sources: Iterable[int],
        update: ValueUpdate,
        combining: Combining | None = None,
    ) -> None:
        self._dense = Dense(value, update)
        super().__init__(self._dense, policy, sources, update, combining)

    @property
    def value(self) -> Values:
        """The one in force."""
        return self._dense.value

    @property
    def state(self) -> Values:
        """That of the update."""
        return self._dense.state

    def replace(self, value: Values) -> None:
        """The value becomes another one, of its shape and type, by no contribution: a version of its own."""
        self._dense.value = value
        self.ledger.amend()

    def restore(self, value: Values, state: Values, version: int, now: float) -> list[PushAnswer]:
        """Value, state and version become those of another time, by no contribution. Those that wait are late."""
        answers = self._answered(self.ledger.drop())
        self.ledger.restore(version, now)
        self._dense.value, self._dense.state = value, state
        return answers

    def read(self, reader: int) -> Values | None:
        """The value, a copy; None if `reader` has to wait."""
        return self.value.copy() if self.ledger.may_read(reader) else None


def _id(push: Contribution) -> _Id:
    return push.source, push.clock
