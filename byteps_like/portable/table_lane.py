"""The rows of a table at one shard as a portable worker uses them: what it has pushed and wants to read. No I/O."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice

from typing_extensions import override

from byteps_like.portable.row_numbers import RowNumbers, SentRows
from byteps_like.portable.store_lane import (
    CLOCKS,
    Frame,
    LanePush,
    LaneSpec,
    LaneTick,
    PushStage,
    Settled,
    StoreLane,
)
from byteps_like.wire.crc32c import Buffer
from byteps_like.wire.frame import DEFAULT_SEGMENT, MOST_LISTS, NACKED_ROWS, RANGE, FrameFlag, FrameType, Header
from byteps_like.wire.note import Applied
from byteps_like.worker.keeping import Outcome

_REQUESTS = 1 << 30
_MOST_UNANSWERED = 1024
"""Contributions: so many answers a server can give again."""
_IDS = struct.Struct("<2Q")


@dataclass(eq=False, slots=True)
class LaneRows(LanePush):
    """A contribution of some rows."""

    rows: SentRows = field(default_factory=lambda: SentRows(b""), kw_only=True)


@dataclass(eq=False, slots=True)
class LaneFetch:
    """A read of some rows; or, without `rows`, of those with ids in `range` and versions beyond `since`, of more than
    `most` the first ones, where that isn't 0. `settled` is called when `out` has them: of a range, their ids before
    them; of rows that are `filtered`, what filters have made of them. Of these two `out` is made when it is known how
    long it is."""

    rows: SentRows | None
    settled: Settled
    out: memoryview = field(default_factory=lambda: memoryview(b""))
    range: tuple[int, int] = (0, 0)
    since: int = 0
    most: int = 0
    filtered: bool = False
    priority: int = 0
    clock: int = field(default=0, init=False)
    request: int = field(default=0, init=False)
    number: int | None = field(default=None, init=False)
    """Of its list."""
    asked: bool = field(default=False, init=False)
    got: int = field(default=0, init=False)
    version: int = field(default=0, init=False)
    """Of which it has got something."""

    def fits(self, total: int, row: int) -> bool:
        """Whether an answer may have so many bytes, where one row has `row`."""
        if self.got or not (self.filtered or self.rows is None):
            return total == len(self.out)
        return self.filtered or total % (8 + row) == 0


class TableLane(StoreLane):
    """As a StoreLane. A list of rows is told before what is about it, unless the server knows it on this link."""

    def __init__(self, spec: LaneSpec) -> None:
        super().__init__(spec)
        self._numbers = RowNumbers()
        self._lists: dict[int, int] = {}
        """Of contributions, by clock: numbers of their lists."""
        self._fetches: dict[int, LaneFetch] = {}
        """Not answered, by request, in their order."""
        self._requests = 0

    def fetch(self, fetch: LaneFetch) -> None:
        """Queues a read, which sees all contributions that were queued before."""
        fetch.clock = self._clock
        fetch.request = self._requests % _REQUESTS
        self._requests += 1
        self._fetches[fetch.request] = fetch

    @override
    def new_link(self) -> None:
        super().new_link()
        self._numbers.new_link()
        for fetch in self._fetches.values():
            fetch.asked, fetch.got = False, 0

    # What it has to say

    @property
    @override
    def excess(self) -> int:
        return sum(len(push.data) for push in islice(self._pushes.values(), 1, None) if push.begun)

    @property
    @override
    def sends(self) -> LanePush | None:
        push = super().sends
        if push is None or isinstance(push, LaneTick):
            return push
        return push if self._number_of(push) is not None and not self._is_untold(push) else None

    def _number_of(self, push: LanePush) -> int | None:
        """Of its list; None: it has to wait for one, or for answers to others."""
        assert isinstance(push, LaneRows)
        if not push.begun and self._begun >= _MOST_UNANSWERED:
            return None
        clock = push.clock % CLOCKS
        if clock not in self._lists and (number := self._numbers.hold(push.rows)) is not None:
            self._lists[clock] = number
        return self._lists.get(clock)

    def _is_untold(self, push: LanePush) -> bool:
        return not self._numbers.known(self._lists[push.clock % CLOCKS])

    def _next_fetch(self) -> LaneFetch | None:
        for fetch in self._fetches.values():
            if not fetch.asked:
                if fetch.rows is not None and fetch.number is None:
                    fetch.number = self._numbers.hold(fetch.rows)
                return fetch if fetch.rows is None or fetch.number is not None else None
        return None

    def _untold_push(self) -> LanePush | None:
        push = super().sends
        wants = (
            push is not None
            and not isinstance(push, LaneTick)
            and self._number_of(push) is not None
            and self._is_untold(push)
        )
        return push if wants else None

    @override
    def _has_read(self) -> bool:
        return self._next_fetch() is not None or self._untold_push() is not None

    @override
    def _ask(self) -> Frame:
        fetch = self._next_fetch()
        if fetch is None:
            push = self._untold_push()
            assert push is not None
            return self._announce(self._lists[push.clock % CLOCKS])
        if fetch.number is not None and not self._numbers.known(fetch.number):
            return self._announce(fetch.number)
        fetch.asked = True
        header = replace(
            self._header(FrameType.FETCH, fetch.clock), total=fetch.request, priority=fetch.priority,
            aux=RANGE if fetch.number is None else fetch.number, offset=fetch.since,
            root=fetch.most if fetch.rows is None else fetch.rows.crc,
        )  # fmt: skip
        return header, b"" if fetch.rows is not None else _IDS.pack(*fetch.range)

    def _announce(self, number: int) -> Frame:
        header, payload = self._numbers.announce(number, DEFAULT_SEGMENT)
        return replace(header, key=self.spec.key, dtype=self.spec.dtype), payload

    @override
    def _push_header(self, push: LanePush) -> Header:
        header = super()._push_header(push)
        if isinstance(push, LaneTick):
            return header
        assert isinstance(push, LaneRows)
        header = replace(header, type=FrameType.ROWS)
        return replace(header, aux=self._lists.get(push.clock % CLOCKS, MOST_LISTS - 1), root=push.rows.crc)

    @override
    def _noted(self, header: Header) -> Header:
        return replace(header, flags=header.flags | FrameFlag.NOTED)

    # What it is told

    @override
    def take(self, header: Header, payload: Buffer) -> None:
        if header.type is FrameType.NACK:
            self._take_nack(header)
        else:
            super().take(header, payload)

    def _take_nack(self, header: Header) -> None:
        """A list is told again, and so is what was about it."""
        if header.total == NACKED_ROWS:
            push = self._pushes.get(header.round)
            if push is None or push.stage is PushStage.REPEATS or self._lists.get(header.round) != header.aux:
                return
            self._rewind(push)
        else:
            fetch = self._fetches.get(header.offset)
            if fetch is None or fetch.number != header.aux:
                return
            fetch.asked = False
        self._numbers.lacks(header.aux, header.root)

    def _rewind(self, push: LanePush) -> None:
        """That contribution, and those behind it, are sent again."""
        again = list(self._from(push))
        for one in again:
            one.go_on(0)
        self._unsent.clear()
        self._unsent.extend(again)

    def _from(self, push: LanePush) -> Iterator[LanePush]:
        found = False
        for one in self._pushes.values():
            found = found or one is push
            if found:
                yield one

    @override
    def _take_applied(self, header: Header, payload: Buffer) -> None:
        super()._take_applied(header, payload)
        if header.round not in self._pushes and header.round in self._lists:
            self._numbers.release(self._lists.pop(header.round))

    @override
    def _take_value(self, header: Header, payload: Buffer) -> None:
        fetch = self._fetches.get(header.aux)
        if fetch is None or not fetch.asked:
            return
        fits = fetch.fits(header.total, self.spec.nbytes)
        if not fits or header.offset != fetch.got or (fetch.got and header.root != fetch.version):
            raise self._corrupt(
                f"the answer to read {header.aux} goes on at byte {header.offset} of {header.total}, version"
                f" {header.root}, not at byte {fetch.got} of {len(fetch.out)}, version {fetch.version}"
            )
        if not fetch.got and (fetch.filtered or fetch.rows is None):
            fetch.out = memoryview(bytearray(header.total))
        if header.length:
            fetch.out[fetch.got : fetch.got + header.length] = memoryview(payload).cast("B")
        fetch.got += header.length
        fetch.version = header.root
        if fetch.got == len(fetch.out):
            self._answered(fetch)

    def _answered(self, fetch: LaneFetch) -> None:
        del self._fetches[fetch.request]
        if fetch.number is not None:
            self._numbers.release(fetch.number)
        fetch.settled(Outcome(Applied.COUNTED, fetch.version))
