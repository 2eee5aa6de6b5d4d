"""The store keys that a portable worker uses at one server: order, credit, and the numbers of specs. No I/O."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from byteps_like.portable.flow import URGENT, whole_elements
from byteps_like.portable.store_calls import Answered, LaneCall, StoreCalls
from byteps_like.portable.store_lane import Frame, LanePull, LanePush, LaneSpec, Opened, StoreLane
from byteps_like.portable.table_lane import LaneFetch, TableLane
from byteps_like.wire.crc32c import Buffer
from byteps_like.wire.frame import FrameType, Header

T = TypeVar("T")
_Turn = tuple[int, int, StoreLane, LanePush]
"""Priority, negative; since when; whose; what it is."""


class StoreFlow:
    """Questions first, then contributions by priority; keys of one priority in turn. One thread.

    Every key may have one contribution unanswered: what one policy or another answers only when other ranks have
    contributed, too, must never wait for the answer to another key. Beside these, `credit` bytes.
    """

    def __init__(self, segment: int, credit: int) -> None:
        self.set_segment(segment)
        self.credit = credit
        self._lanes: dict[int, StoreLane] = {}
        self._tables: dict[int, TableLane] = {}
        """Those of them that are of tables."""
        self._asking: dict[int, StoreLane] = {}
        """Those that may have a question, the first to ask first."""
        self._turns: list[_Turn] = []
        self._starved: list[_Turn] = []
        self._queued: dict[int, LanePush] = {}
        """By key, whose turn is in one of these."""
        self._order = itertools.count()
        self._excess = 0
        self._calls = StoreCalls()
        self._saving = StoreCalls()
        """Requests about what is saved."""
        self._specs: dict[int, dict[bytes, int]] = {}
        """By shard, numbers of texts on the link to it."""

    def set_segment(self, nbytes: int) -> None:
        """The largest payload of a frame from now on; rounded down so that no segment splits an element."""
        self._segment = whole_elements(nbytes)

    def open(self, spec: LaneSpec, initial: memoryview | None, opened: Opened) -> None:
        """Makes a key ready, and gives it the spec, where it is open with another. See StoreLane.open and change."""
        self._open(self._lanes.setdefault(spec.key, StoreLane(spec)), spec, initial, opened)

    def open_table(self, spec: LaneSpec, opened: Opened) -> None:
        """The same for the rows of a table; `spec.nbytes` are those of a row."""
        self._open(self._tables.setdefault(spec.key, TableLane(spec)), spec, None, opened)

    def _open(self, lane: StoreLane, spec: LaneSpec, initial: memoryview | None, opened: Opened) -> None:
        self._lanes[spec.key] = lane
        if lane.has_value:
            self._change(lane, lambda: lane.change(spec.text, opened))
        else:
            self._change(lane, lambda: lane.open(initial, opened))

    def push(self, key: int, push: LanePush) -> None:
        """Queues a contribution to a key that is open."""
        lane = self._lanes[key]
        self._change(lane, lambda: lane.push(push))

    def pull(self, key: int, pull: LanePull) -> None:
        """Queues a read of a key that is open."""
        lane = self._lanes[key]
        self._change(lane, lambda: lane.pull(pull))

    def fetch(self, key: int, fetch: LaneFetch) -> None:
        """Queues a read of rows of a table that is open."""
        lane = self._tables[key]
        self._change(lane, lambda: lane.fetch(fetch))

    def is_cut_off(self, key: int) -> bool:
        """Whether the server has enough without this rank's next contribution to it. May be asked by any thread."""
        lane = self._lanes.get(key)
        return lane is not None and lane.cut_off

    def call(self, keys: list[int], here: int, parts: int, text: bytes, answered: Answered) -> None:
        """Queues a call on keys of one shard that are open. See LaneCall."""
        self._calls.add(LaneCall([self._lanes[key] for key in keys], here, parts, text, answered))

    def ask(self, kind: FrameType, keys: list[int], text: bytes, answered: Answered) -> None:
        """Queues a request about what is saved, behind contributions to keys of one shard that are open."""
        self._saving.add(LaneCall([self._lanes[key] for key in keys], 0, 0, text, answered, kind))

    def _due_calls(self) -> tuple[StoreCalls, int] | None:
        """What goes next, and to which shard."""
        return next(((calls, at) for calls in (self._calls, self._saving) if (at := calls.due()) is not None), None)

    def new_link(self) -> None:
        """Nothing is known to have arrived."""
        self._calls.new_link()
        self._saving.new_link()
        for each in (self._asking, self._turns, self._starved, self._queued, self._specs):
            each.clear()
        for lane in self._lanes.values():
            self._change(lane, lane.new_link)

    def urgency(self) -> int | None:
        """The priority of the frame that goes next; None: there is none."""
        while self._asking and not self._asks_first().has_question():
            del self._asking[self._asks_first().spec.key]
        if self._asking or self._due_calls() is not None:
            return URGENT
        while self._turns:
            _, _, lane, push = self._turns[0]
            if lane.sends is push and self._has_credit(lane, push):
                return push.priority
            turn = heapq.heappop(self._turns)
            if lane.sends is push:
                self._starved.append(turn)
            elif self._queued.get(lane.spec.key) is push:
                del self._queued[lane.spec.key]
        return None

    def next_frame(self) -> tuple[int, Header, Buffer]:
        """Shard, header and payload of the frame that goes next; it counts as sent. Call `urgency` before."""
        if not self._asking and (due := self._due_calls()) is not None:
            calls, shard = due
            return shard, *calls.next_frame(shard)
        lane = self._asks_first() if self._asking else self._turns[0][2]
        if self._asking:
            del self._asking[lane.spec.key]
            header, payload = self._change(lane, lane.question)
        else:
            header, payload = self._change(lane, lambda: lane.segment(self._segment))
        if header.type is FrameType.SPEC:
            header, payload = self._numbered(lane.spec.shard, header, bytes(payload))
        return lane.spec.shard, header, payload

    def take(self, header: Header, payload: Buffer) -> bool:
        """A frame that has come; False if it is of no key here. Raises CorruptError for one that makes no sense."""
        lane = self._lanes.get(header.key)
        if lane is None:
            return False
        if header.type is FrameType.CALL:
            self._calls.take(lane.spec.shard, header, payload)
            return True
        if header.type in (FrameType.CUT, FrameType.STATE):
            self._saving.take(lane.spec.shard, header, payload)
            return True
        self._change(lane, lambda: lane.take(header, payload))
        if header.type is FrameType.APPLIED:
            for turn in self._starved:
                heapq.heappush(self._turns, turn)
            self._starved.clear()
        return True

    def clear(self) -> None:
        """Forgets all."""
        self._calls.clear()
        self._saving.clear()
        for each in (self._lanes, self._tables, self._asking, self._turns, self._starved, self._queued, self._specs):
            each.clear()

    def _change(self, lane: StoreLane, call: Callable[[], T]) -> T:
        """Does it, and looks what the lane wants afterwards."""
        before = lane.excess
        result = call()
        self._excess += lane.excess - before
        key, push = lane.spec.key, lane.sends
        if lane.has_question():
            self._asking.setdefault(key, lane)
        if push is not None and self._queued.get(key) is not push:
            self._queued[key] = push
            heapq.heappush(self._turns, (-push.priority, next(self._order), lane, push))
        return result

    def _asks_first(self) -> StoreLane:
        return next(iter(self._asking.values()))

    def _has_credit(self, lane: StoreLane, push: LanePush) -> bool:
        return lane.has_credit(push) or self._excess + len(push.data) <= self.credit

    def _numbered(self, shard: int, header: Header, text: bytes) -> Frame:
        """A SPEC with its number on this link, and its text where that is new."""
        numbers = self._specs.setdefault(shard, {})
        known = text in numbers
        return replace(header, aux=numbers.setdefault(text, len(numbers))), b"" if known else text
