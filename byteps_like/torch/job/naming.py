"""Where operations of single tensors meet: all ranks must come to the same name for the same call, without asking.

The n-th use of a name on one rank meets the n-th on the others; operations without a name meet in the order in which
they are begun. What a rank means by a call (its kind, shape, element type, reduction, root, factors) is part of the
name under which the data travels, so calls that differ never meet, and nothing has to be compared on the way: who
waits for longer than a moment says so, and hears whether the others mean something else, or have begun something else
in its place (lookout.py, control/members/meetings.py). Then that one call fails, on all ranks.

What a name stands for is kept from its second use on. Of one that was used once a rank lets go as soon as its own part
is over, and keeps only a number that says that it was: the second use counts as the second on all ranks, and a rank
that has joined (join.py) takes no part in the first one again. So programs may make up new names all the time.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from time import monotonic

from byteps_like.errors import BytePSLikeError, InvalidArgumentError, MismatchError, PeerLostError
from byteps_like.worker.api import LEFT, OUT_OF_STEP, Handle, Meeting, MeetingPlace

LANES = 32
"""Operations without a name that may be in flight at a time: the next one begins when the first of them has ended. What
waits for that is in a backlog, but for tensors on a device: there the caller waits."""

KEPT = 8
"""Meanings of one name that are remembered, so that to alternate between them costs nothing."""

UNNAMED_KEPT = 256
"""The same of each of the lanes, through which all calls without a name go."""

WORD_SECONDS = 5.0
"""For which the scheduler's word is awaited when another rank has passed it on sooner."""

REASON_SECONDS = 1.0
"""For which it is awaited when another rank has left: it may have heard sooner that the ranks disagree."""

_GENERATION = 32
"""Uses are counted from the generation times 2 to the power of that: what is heard late is of none of this one's."""

Forget = Callable[[str], None]
"""Told of a name under which no data will travel any more."""

Waits = dict[int, "tuple[Claim, float] | None"]
"""By thread, the operation that it waits for, and since when."""


@dataclass(frozen=True)
class Among:
    """The ranks that an operation goes over: those of a process set, whose names begin with `prefix`, or all."""

    prefix: str = ""
    ranks: tuple[int, ...] = ()

    @cached_property
    def called(self) -> str:
        """For people."""
        return f" of process set {self.prefix[3:-1]}" if self.prefix else ""


@dataclass(eq=False, slots=True)
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
    ranks: tuple[int, ...] = ()
    """Of its process set; none: all."""
    lane: tuple[str, int] | None = None
    """Of one without a name: its process set, and its number there."""
    began: float = field(default_factory=monotonic)
    handle: Handle | None = None
    error: BytePSLikeError | None = None
    """The ranks disagree on it, or one takes no part in it."""
    released: bool = False
    prefix: str = ""
    """Of its process set."""
    once: bool = False
    """Nobody knows yet whether its point will be used again: nothing is kept for that. The same on all ranks."""

    @property
    def over(self) -> bool:
        """Whether nothing of it is in flight; it may not have been synchronized."""
        return self.released or (self.handle is not None and self.handle.done())

    @property
    def over_on_device(self) -> bool:
        """Whether nothing of it is in flight, even if it was synchronized by a stream only."""
        return self.handle is None or self.handle.done()

    @property
    def place(self) -> MeetingPlace:
        """Where ranks meet for it."""
        return self.point, self.use

    def meeting(self, blocks: bool = False) -> Meeting:
        """For the other ranks."""
        return Meeting(self.point, self.use, self.what, self.says, self.name, self.ranks, blocks)


@dataclass(eq=False)
class _Point:
    forget: Forget = lambda _: None
    kept: int = KEPT
    prefix: str = ""
    uses: int = 0
    names: OrderedDict[str, str] = field(default_factory=OrderedDict)
    """Under which data travels, by what is meant, the newest last. The same on all ranks: it depends on uses only."""
    newest: Claim | None = None
    failed: dict[int, Failed] = field(default_factory=dict)
    """Uses that this rank has not come to, and that the others have failed in."""
    passed: set[int] = field(default_factory=set)
    """Uses that this rank has not come to, and won't: it has failed in others in their place."""

    def passes(self) -> bool:
        """Whether the next use is one of those; then it is over."""
        if self.uses not in self.passed:
            return False
        self.passed.remove(self.uses)
        self.uses += 1
        self.clear()
        return True

    def settle(self) -> None:
        """After a use that failed: ranks have used different names unequally often, so all begin anew."""
        claim = self.newest
        if claim is not None and claim.error is not None and claim.over:
            self.clear()
            self.newest = None

    def begin_anew(self, first: int) -> None:
        """Uses are counted from `first` on."""
        self.clear()
        self.uses, self.newest = first, None
        self.failed = {use: failed for use, failed in self.failed.items() if use >= first}
        self.passed = {use for use in self.passed if use >= first}

    @property
    def holds_nothing(self) -> bool:
        """Whether there is nothing to know of it but how often it was used."""
        return not self.names and not self.failed and not self.passed and self.newest is None

    def clear(self) -> None:
        while self.names:
            self.forget(self.names.popitem()[1])

    def remember(self, claim: Claim) -> None:
        """It was begun: on this rank, hence on all."""
        if claim.once:
            return
        self.names[claim.says] = claim.name
        self.names.move_to_end(claim.says)
        while len(self.names) > self.kept:
            self.forget(self.names.popitem(last=False)[1])


@dataclass(frozen=True)
class Failed:
    """Uses of which a rank that has come to none yet comes to one, and raises `error`."""

    places: tuple[MeetingPlace, ...]
    error: MismatchError


@dataclass(frozen=True)
class Call:
    """What a user asked for. `says` is what must be the same on all ranks, in words, `kind` the first of them."""

    kind: str
    name: str | None
    says: str

    @cached_property
    def label(self) -> str:
        """The user's name among other labels."""
        return repr(self.name)

    @cached_property
    def words(self) -> str:
        """All that must be the same."""
        return f"{self.kind} {self.says}".rstrip()


class _Wait:
    """Within its block a thread waits for a claim, and makes no call."""

    __slots__ = ("_began", "_claim", "_thread", "_waited", "_waits")

    def __init__(self, waits: Waits, waited: threading.local, claim: Claim | None) -> None:
        self._waits, self._waited, self._claim = waits, waited, claim

    def __enter__(self) -> None:
        self._thread, self._began = threading.get_ident(), monotonic()
        if self._claim is not None:
            self._waits[self._thread] = self._claim, self._began

    def __exit__(self, *_: object) -> None:
        self._waits[self._thread] = None
        self._waited.seconds = getattr(self._waited, "seconds", 0.0) + monotonic() - self._began


class NameTable:
    """The operations in flight, and what their names stand for. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._awaited = 0
        """Threads that wait for a change."""
        self._points: dict[str, _Point] = {}
        self._once: defaultdict[str, set[int]] = defaultdict(set)
        """By process set, marks of points that were used once in this generation, and have no entry above."""
        self._passing: list[tuple[Claim, Forget]] = []
        """Operations of such points that have been synchronized, but may still be in flight on a device."""
        self._unnamed: dict[str, int] = {}
        self._in_flight: dict[str, Claim] = {}
        self._generation = 0
        self._waits: Waits = {threading.get_ident(): None}
        self._waited = threading.local()

    def claim(self, among: Among, call: Call, forget: Forget, kept: int = 0) -> Claim:
        """The place of a new operation. Names that stand for too much are told to `forget`; at most `kept` meanings are
        remembered, if that is fewer than usual.

        Blocks while there are LANES without a name in flight. Raises InvalidArgumentError if the user's name is in
        flight, MismatchError if the others have failed in this call.
        """
        with self._lock:
            self._waits.setdefault(threading.get_ident(), None)
            if call.name is not None:
                claim = self._claim(among, call.name, call.label, call)
                kept = min(kept or KEPT, KEPT)
            else:
                claim = self._claim_lane(among, call)
                kept = kept or UNNAMED_KEPT
            point = self._points[claim.point]
            point.forget, point.kept, point.prefix = forget, kept, among.prefix
            return claim

    def _claim_lane(self, among: Among, call: Call) -> Claim:
        number = self._free_lane(among.prefix)
        self._unnamed[among.prefix] = number + 1
        claim = self._claim(among, _lane(number), f"call {number + 1} without a name", call)
        claim.lane = among.prefix, number
        return claim

    def _free_lane(self, prefix: str) -> int:
        """The number of the next operation without a name, once its lane is free."""
        while True:
            number = self._unnamed.get(prefix, 0)
            place = prefix + _lane(number)
            point, busy = self._points.get(place), self._in_flight.get(place)
            if busy is not None and not busy.over:
                self._await(busy)  # while others may take it
            elif point is not None and point.passes():
                self._unnamed[prefix] = number + 1
            else:
                return number

    def has_lane(self, prefix: str) -> bool:
        """Whether the lane of the next operation without a name is free."""
        with self._lock:
            busy = self._in_flight.get(prefix + _lane(self._unnamed.get(prefix, 0)))
            return busy is None or busy.over

    def _await(self, claim: Claim) -> None:
        if claim.handle is None:
            self._wait_for_change()
            return
        self._changed.release()
        try:
            with suppress(BytePSLikeError), self.waits(claim):
                claim.handle.wait()
        finally:
            self._changed.acquire()

    def _wait_for_change(self, until: Callable[[], bool] | None = None, seconds: float | None = None) -> None:
        self._awaited += 1
        try:
            if until is None:
                self._changed.wait(seconds)
            else:
                self._changed.wait_for(until, seconds)
        finally:
            self._awaited -= 1

    def _tell_of_change(self) -> None:
        if self._awaited:
            self._changed.notify_all()

    def waits(self, claim: Claim | None) -> _Wait:
        """Within the block this thread waits for `claim`, or for what has none, and makes no call."""
        return _Wait(self._waits, self._waited, claim)

    def waited(self) -> float:
        """Seconds that this thread has spent within such blocks."""
        seconds: float = getattr(self._waited, "seconds", 0.0)
        return seconds

    @contextmanager
    def rests(self) -> Iterator[None]:
        """Within the block this thread waits for a call that another thread is to make, and makes none."""
        thread = threading.get_ident()
        with self._lock:
            self._waits.pop(thread, None)
        try:
            yield
        finally:
            with self._lock:
                self._waits[thread] = None

    def _claim(self, among: Among, label: str, what: str, call: Call) -> Claim:
        prefix = among.prefix
        place, busy = prefix + label, self._in_flight.get(prefix + label)
        if busy is not None and call.name is not None and busy.kind != call.kind:
            place = f"{prefix}{call.kind}.{label}"  # operations of other kinds may have the name, too
            busy = self._in_flight.get(place)
        if busy is not None and call.name is not None:
            raise InvalidArgumentError(
                f"an operation named {call.name!r} is in flight; synchronize() its handle first, or use another name",
                key=call.name,
            )
        point = self._points.get(place) or self._point(place)
        if point.newest is not None:
            point.settle()
        while point.passed and point.passes():
            pass
        use, stable, says = point.uses, f"{prefix}{call.kind}.{label}", call.words
        if point.failed:
            self._check_not_failed(point, use)
        name = point.names.get(says) or self._new_name(stable, call, use)
        claim = Claim(place, use, name, stable, what + among.called, says, call.kind, among.ranks, prefix=prefix)
        claim.once = use == self._first and call.name is not None
        point.uses += 1
        point.newest = self._in_flight[place] = claim
        return claim

    def _new_name(self, stable: str, call: Call, use: int) -> str:
        version = f"~{self._generation}" if self._generation else ""
        return f"{stable} {call.says}{version}@{use}"

    @property
    def _first(self) -> int:
        """The first use of this generation at each point."""
        return self._generation << _GENERATION

    def _point(self, name: str) -> _Point:
        known = self._points.get(name)
        if known is None:
            known = self._points[name] = _Point(uses=self._first + self._was_used_once(name))
            for marks in self._once.values():
                marks.discard(_mark(name))
        return known

    def _was_used_once(self, point: str) -> bool:
        mark = _mark(point)
        return any(mark in marks for marks in self._once.values())

    def _check_not_failed(self, point: _Point, use: int) -> None:
        failed = point.failed.pop(use, None)
        if failed is None:
            return
        point.uses += 1
        point.clear()
        self._pass_over(failed.places)
        raise _fresh(failed.error)

    def begun(self, claim: Claim, handle: Handle) -> None:
        """The operation is in flight."""
        with self._lock:
            claim.handle = handle
            self._points[claim.point].remember(claim)
            self._tell_of_change()

    def withdraw(self, claim: Claim) -> None:
        """It could not be begun on this rank: the next one takes its place."""
        with self._lock:
            self._drop(claim)
            point = self._points[claim.point]
            point.uses = claim.use
            if claim.name != point.names.get(claim.says):
                point.forget(claim.name)
            if claim.lane is not None and self._unnamed[claim.lane[0]] == claim.lane[1] + 1:
                self._unnamed[claim.lane[0]] = claim.lane[1]

    def release(self, claim: Claim, error: BytePSLikeError | None = None) -> None:
        """It is over, with `error` if it failed, and has been synchronized."""
        with self._lock:
            if isinstance(error, MismatchError):  # raised on all ranks, perhaps before this one was told why
                claim.error = claim.error or error
            self._drop(claim)
            point = self._points.get(claim.point)
            if point is not None and point.newest is claim:
                if claim.error is not None:
                    point.settle()
                point.newest = None  # it holds the operation's memory
            if point is not None and claim.once and claim.use == self._first:
                self._passing.append((claim, point.forget))
                if point.holds_nothing and point.uses == self._first + 1:
                    del self._points[claim.point]
                    self._once[claim.prefix].add(_mark(claim.point))
            if self._passing:
                self._let_go()

    def _let_go(self) -> None:
        over = [one for one in self._passing if one[0].over_on_device]
        self._passing = [one for one in self._passing if one not in over]
        for claim, forget in over:
            forget(claim.name)

    def _drop(self, claim: Claim) -> None:
        claim.released = True
        if self._in_flight.get(claim.point) is claim:
            del self._in_flight[claim.point]
        self._tell_of_change()

    def fail(self, places: Sequence[MeetingPlace], error: MismatchError) -> list[str]:
        """The ranks disagree on those uses; they are given up here (see `failing`), or when this rank comes to one.
        If it has come to some of them, it passes over the others, which it made these in place of. Under which names
        they travel that are given up."""
        with self._lock:
            begun = [place for place in places if self._has_begun(place)]
            newest = [self._point(point).newest for point, _ in begun]
            found = [claim for claim in newest if claim is not None and claim.place in begun]
            for claim in found:
                claim.error = error
            if begun:
                self._pass_over(places)
                self._tell_of_change()
            else:
                for point, use in places:
                    self._point(point).failed[use] = Failed(tuple(places), error)
            return [claim.name for claim in found]

    def hear(self, claim: Claim, error: BytePSLikeError) -> None:
        """Another rank has given it up with `error`, or has left: blocks until this one knows what it passes over, too,
        or why the other has left."""
        with self._lock:
            if isinstance(error, MismatchError) and OUT_OF_STEP in str(error):
                self._wait_for_change(lambda: claim.error is not None, WORD_SECONDS)
            elif isinstance(error, PeerLostError) and LEFT in str(error):
                self._wait_for_change(lambda: claim.error is not None, REASON_SECONDS)

    def have_begun(self, places: Sequence[MeetingPlace]) -> tuple[bool, ...]:
        """Whether this rank has come to each of them."""
        with self._lock:
            return tuple(self._has_begun(place) for place in places)

    def _has_begun(self, place: MeetingPlace) -> bool:
        point, use = place
        if point in self._points:
            return use < self._points[point].uses
        return use <= self._first and self._was_used_once(point)

    def _pass_over(self, places: Sequence[MeetingPlace]) -> None:
        for point, use in places:
            known = self._point(point)
            known.failed.pop(use, None)
            if use >= known.uses:
                known.passed.add(use)

    def called(self, name: str) -> str:
        """What is in flight under `name`, in words."""
        with self._lock:
            found = [claim for claim in self._in_flight.values() if claim.name == name]
        return f"{found[0].says} ({found[0].what})" if found else repr(name)

    def abandon(self, name: str, error: BytePSLikeError) -> None:
        """What is in flight under `name` fails with `error`, on this rank: it is given up (see `failing`)."""
        with self._lock:
            for claim in self._in_flight.values():
                if claim.name == name and not claim.over:
                    claim.error = error

    def failing(self) -> list[tuple[Handle, BytePSLikeError]]:
        """Operations that have failed and have not ended yet; what is left of the others is cleared away."""
        with self._lock:
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
        with self._lock:
            return [
                claim
                for claim in self._in_flight.values()
                if claim.began < before and claim.error is None and not claim.over
            ]

    def blocking(self, longer_than: float) -> list[Claim]:
        """What all threads that make calls have waited for that long; none if one of them may make another call: among
        them is the thread that has made this table, whether it has made calls or not."""
        before = monotonic() - longer_than
        with self._lock:
            living = {thread.ident for thread in threading.enumerate()}
            for thread in self._waits.keys() - living:
                del self._waits[thread]
            found = list(self._waits.values())
            if any(wait is None or wait[1] > before or wait[0].error or wait[0].over for wait in found):
                return []
            return [wait[0] for wait in found if wait is not None]

    def end(self, prefix: str) -> bool:
        """The process set of that prefix is no more. False, and nothing is done: something of it is in flight here."""
        with self._lock:
            self._let_go()
            if any(claim.prefix == prefix for claim in [*self._in_flight.values(), *(one for one, _ in self._passing)]):
                return False
            self._points = {place: point for place, point in self._points.items() if point.prefix != prefix}
            self._once.pop(prefix, None)
            self._unnamed.pop(prefix, None)
            return True

    def begin_anew(self) -> None:
        """A new generation: uses are counted from another number, on all ranks at a moment at which nothing is in
        flight on any. Other ranks may have begun before, and failed in what this one is about to come to."""
        with self._lock:
            self._passing += [(one, self._points[one.point].forget) for one in self._in_flight.values() if one.once]
            self._let_go()
            self._once.clear()
            self._generation += 1
            for point in self._points.values():
                point.begin_anew(self._first)
            self._points = {name: point for name, point in self._points.items() if point.failed or point.passed}
            self._unnamed.clear()
            self._in_flight.clear()


def _mark(point: str) -> int:
    return int.from_bytes(hashlib.blake2b(point.encode(), digest_size=8).digest(), "little")


def _lane(number: int) -> str:
    return f"unnamed#{number % LANES}"


def explained(claim: Claim | None, error: BytePSLikeError) -> BytePSLikeError:
    """What to raise for `error` of that operation."""
    return error if claim is None or claim.error is None else _fresh(claim.error)


def _fresh(error: BytePSLikeError) -> BytePSLikeError:
    return type(error)(str(error), rank=error.rank, key=error.key, operation=error.operation)
