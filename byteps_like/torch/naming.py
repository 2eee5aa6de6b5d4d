"""Where operations of single tensors meet: all ranks must come to the same name for the same call, without asking.

The n-th use of a name on one rank meets the n-th on the others; operations without a name meet in the order in which
they are begun. What a rank means by a call (its kind, shape, element type, reduction, root, factors) is part of the
name under which the data travels, so calls that differ never meet, and nothing has to be compared on the way: who
waits for longer than a moment says so, and hears whether the others mean something else (lookout.py,
control/meetings.py). Then that one call fails, on all ranks.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic

from byteps_like.errors import BytePSLikeError, InvalidArgumentError, MismatchError
from byteps_like.worker.api import Handle, Meeting

LANES = 32
"""Operations without a name that may be in flight at a time: the next one waits until the first of them has ended."""

KEPT = 8
"""Meanings of one name that are remembered, so that to alternate between them costs nothing."""

UNNAMED_KEPT = 256
"""The same of each of the lanes, through which all calls without a name go."""

Forget = Callable[[str], None]
"""Told of a name under which no data will travel any more."""


@dataclass(eq=False)
class Claim:
    """One operation: the `use`th, from 0, at its `point`."""

    point: str
    use: int
    name: str
    """Under which its data travels."""
    stable: str
    """The same for all operations of one kind at this point, whatever they mean."""
    what: str
    says: str
    kind: str
    lane: tuple[str, int] | None = None
    """Of one without a name: its process set, and its number there."""
    began: float = field(default_factory=monotonic)
    handle: Handle | None = None
    error: BytePSLikeError | None = None
    """The ranks disagree on it, or one takes no part in it."""
    released: bool = False

    @property
    def over(self) -> bool:
        """Whether nothing of it is in flight; it may not have been synchronized."""
        return self.released or (self.handle is not None and self.handle.done())

    @property
    def meeting(self) -> Meeting:
        """For the other ranks."""
        return Meeting(self.point, self.use, self.what, self.says, self.name)


@dataclass(eq=False)
class _Point:
    forget: Forget
    kept: int
    uses: int = 0
    names: OrderedDict[str, str] = field(default_factory=OrderedDict)
    """Under which data travels, by what is meant, the newest last. The same on all ranks: it depends on uses only."""
    newest: Claim | None = None
    failed: dict[int, MismatchError] = field(default_factory=dict)
    """Uses that this rank has not come to, and that the others have failed in."""

    def settle(self) -> None:
        """After a use that failed: ranks have used different names unequally often, so all begin anew."""
        claim = self.newest
        if claim is not None and claim.error is not None and claim.over:
            self.clear()
            self.newest = None

    def clear(self) -> None:
        while self.names:
            self.forget(self.names.popitem()[1])

    def remember(self, claim: Claim) -> None:
        """It was begun: on this rank, hence on all."""
        self.names[claim.says] = claim.name
        self.names.move_to_end(claim.says)
        while len(self.names) > self.kept:
            self.forget(self.names.popitem(last=False)[1])


@dataclass(frozen=True)
class Call:
    """What a user asked for. `says` is what must be the same on all ranks, in words, `kind` the first of them."""

    kind: str
    name: str | None
    says: str


class NameTable:
    """The operations in flight, and what their names stand for. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._points: dict[str, _Point] = {}
        self._unnamed: dict[str, int] = {}
        self._in_flight: dict[str, Claim] = {}
        self._generation = 0

    def claim(self, prefix: str, call: Call, forget: Forget, kept: int = 0) -> Claim:
        """The place of a new operation; `prefix` is that of its process set. Names that stand for too much are told to
        `forget`; at most `kept` meanings are remembered, if that is fewer than usual.

        Blocks while there are LANES without a name in flight. Raises InvalidArgumentError if the user's name is in
        flight, MismatchError if the others have failed in this call.
        """
        with self._changed:
            if call.name is not None:
                return self._claim(prefix, call.name, repr(call.name), call, forget, min(kept or KEPT, KEPT))
            number = self._unnamed.get(prefix, 0)
            label = f"unnamed#{number % LANES}"
            self._await_lane(prefix + label)
            self._unnamed[prefix] = number + 1
            what = f"call {number + 1} without a name" + (f" of process {prefix[:-1]}" if prefix else "")
            claim = self._claim(prefix, label, what, call, forget, kept or UNNAMED_KEPT)
            claim.lane = prefix, number
            return claim

    def _await_lane(self, point: str) -> None:
        while (claim := self._in_flight.get(point)) is not None and not claim.over:
            if claim.handle is None:
                self._changed.wait()
                continue
            self._changed.release()
            try:
                with suppress(BytePSLikeError):
                    claim.handle.wait()
            finally:
                self._changed.acquire()

    def _claim(self, prefix: str, label: str, what: str, call: Call, forget: Forget, kept: int) -> Claim:
        place, busy = prefix + label, self._in_flight.get(prefix + label)
        if busy is not None and call.name is not None and busy.kind != call.kind:
            place = f"{prefix}{call.kind}.{label}"  # operations of other kinds may have the name, too
            busy = self._in_flight.get(place)
        if busy is not None and call.name is not None:
            raise InvalidArgumentError(
                f"an operation named {call.name!r} is in flight; synchronize() its handle first, or use another name",
                key=call.name,
            )
        point = self._points.setdefault(place, _Point(forget, kept))
        point.settle()
        use, version = point.uses, f"~{self._generation}" if self._generation else ""
        stable = f"{prefix}{call.kind}.{label}"
        failed = point.failed.pop(use, None)
        if failed is not None:
            point.uses += 1
            point.clear()
            raise _fresh(failed)
        says = f"{call.kind} {call.says}".rstrip()
        name = point.names.get(says) or f"{stable} {call.says}{version}@{use}"
        claim = Claim(place, use, name, stable, what, says, call.kind)
        point.uses += 1
        point.newest = self._in_flight[place] = claim
        return claim

    def begun(self, claim: Claim, handle: Handle) -> None:
        """The operation is in flight."""
        with self._changed:
            claim.handle = handle
            self._points[claim.point].remember(claim)
            self._changed.notify_all()

    def withdraw(self, claim: Claim) -> None:
        """It could not be begun on this rank: the next one takes its place."""
        with self._changed:
            self._drop(claim)
            point = self._points[claim.point]
            point.uses = claim.use
            if claim.name != point.names.get(claim.says):
                point.forget(claim.name)
            if claim.lane is not None and self._unnamed[claim.lane[0]] == claim.lane[1] + 1:
                self._unnamed[claim.lane[0]] = claim.lane[1]

    def release(self, claim: Claim, error: BytePSLikeError | None = None) -> None:
        """It is over, with `error` if it failed, and has been synchronized."""
        with self._changed:
            if isinstance(error, MismatchError):  # raised on all ranks, perhaps before this one was told why
                claim.error = claim.error or error
            self._drop(claim)
            point = self._points.get(claim.point)
            if point is not None and point.newest is claim:
                point.settle()
                point.newest = None  # it holds the operation's memory

    def _drop(self, claim: Claim) -> None:
        claim.released = True
        if self._in_flight.get(claim.point) is claim:
            del self._in_flight[claim.point]
        self._changed.notify_all()

    def fail(self, point: str, use: int, error: MismatchError) -> None:
        """The ranks disagree on that use; it is given up here (see `failing`), or when this rank comes to it."""
        with self._changed:
            known = self._points.setdefault(point, _Point(lambda _: None, KEPT))
            claim = known.newest
            if claim is not None and claim.use == use:
                claim.error = error
            elif use >= known.uses:
                known.failed[use] = error

    def called(self, name: str) -> str:
        """What is in flight under `name`, in words."""
        with self._changed:
            found = [claim for claim in self._in_flight.values() if claim.name == name]
        return f"{found[0].says} ({found[0].what})" if found else repr(name)

    def abandon(self, name: str, error: BytePSLikeError) -> None:
        """What is in flight under `name` fails with `error`, on this rank: it is given up (see `failing`)."""
        with self._changed:
            for claim in self._in_flight.values():
                if claim.name == name and not claim.over:
                    claim.error = error

    def failing(self) -> list[tuple[Handle, BytePSLikeError]]:
        """Operations that have failed and have not ended yet; what is left of the others is cleared away."""
        with self._changed:
            found = [claim for claim in self._in_flight.values() if claim.error is not None]
            for claim in found:
                self._points[claim.point].settle()
            return [
                (claim.handle, claim.error)
                for claim in found
                if claim.handle is not None and claim.error is not None and not claim.handle.done()
            ]

    def waiting(self, longer_than: float) -> list[Claim]:
        """Operations that have been in flight for so many seconds."""
        before = monotonic() - longer_than
        with self._changed:
            return [
                claim
                for claim in self._in_flight.values()
                if claim.began < before and claim.error is None and not claim.over
            ]

    def begin_anew(self) -> None:
        """Uses are counted from 0 again, on all ranks at a moment at which nothing is in flight on any."""
        with self._changed:
            for point in self._points.values():
                point.clear()
            self._points.clear()
            self._unnamed.clear()
            self._in_flight.clear()
            self._generation += 1


def explained(claim: Claim | None, error: BytePSLikeError) -> BytePSLikeError:
    """What to raise for `error` of that operation."""
    return error if claim is None or claim.error is None else _fresh(claim.error)


def _fresh(error: BytePSLikeError) -> BytePSLikeError:
    return type(error)(str(error), rank=error.rank, key=error.key, operation=error.operation)
