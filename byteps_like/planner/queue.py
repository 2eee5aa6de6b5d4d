"""What waits to be pushed to one shard of a server: by priority, then age, a segment at a time, within the credit.

The rules are those of csrc/engine/channel_data.cc.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from byteps_like.planner.clock import SimulatedClock
from byteps_like.planner.link import Link, Segment

SEGMENTS_PER_PART = 8  # at least, unless they would become smaller than:
LEAST_SEGMENT = 16 << 10
SEGMENT_UNIT = 4 << 10
LEND_AFTER = 0.05  # seconds without results, until credit is lent


@dataclass(slots=True)
class Push:
    """A partition of one worker in one round, on its way to the server and back."""

    key: int
    round: int
    nbytes: int
    priority: int
    done: Callable[[], None]
    sent: int = 0
    landed: int = 0


class PushQueue:
    """One worker's pushes to one shard. `credit` is how far they may be ahead of results, in bytes."""

    link: Link

    def __init__(self, clock: SimulatedClock, segment_bytes: int, credit: float, whole: bool = False) -> None:
        self._clock = clock
        self._segment_bytes = segment_bytes
        self._whole = whole
        self._credit = credit
        self._queue: list[tuple[int, int, Push]] = []
        self._order = 0
        self._ahead = 0.0
        self._flying: dict[int, Push] = {}
        self._lent = 0.0
        self._lending = False
        self._landed_at = 0.0

    def add(self, push: Push) -> None:
        """Queues a partition that is ready."""
        self._order += 1
        heapq.heappush(self._queue, (-push.priority, self._order, push))
        self.link.kick()

    def next_segment(self) -> Segment | None:
        """See link.SegmentSource."""
        if not self._queue or not self._has_credit(self._queue[0][2]):
            return None
        push = self._queue[0][2]
        self._flying[id(push)] = push
        length = min(push.nbytes - push.sent, self._segment_of(push))
        segment = Segment(push, push.sent, length)
        push.sent += length
        self._ahead += length
        if push.sent == push.nbytes:
            heapq.heappop(self._queue)
        return segment

    def sent(self, segment: Segment) -> None:
        """See link.SegmentSource."""

    def landed(self, segment: Segment) -> None:
        """A segment of a result has come."""
        push: Push = segment.what
        push.landed += segment.nbytes
        self._ahead -= segment.nbytes
        self._landed_at = self._clock.now
        if self._ahead <= self._credit:
            self._lent = 0.0
        if push.landed == push.nbytes:
            del self._flying[id(push)]
            push.done()
        if self._queue:
            self.link.kick()

    def _segment_of(self, push: Push) -> int:
        """Small partitions are cut as well: the first segments are answered while the others are on their way."""
        if self._whole:
            return push.nbytes
        even = push.nbytes // SEGMENTS_PER_PART // SEGMENT_UNIT * SEGMENT_UNIT
        return min(self._segment_bytes, max(even, LEAST_SEGMENT))

    def _has_credit(self, push: Push) -> bool:
        """What less urgent pushes have ahead doesn't count."""
        credit = self._credit + self._lent
        if self._ahead < credit or self._ahead_from(push.priority) < credit:
            return True
        if not self._lending:
            self._lending = True
            self._clock.at(self._clock.now + LEND_AFTER, self._lend)
        return False

    def _ahead_from(self, priority: int) -> float:
        return sum(push.sent - push.landed for push in self._flying.values() if push.priority >= priority)

    def _lend(self) -> None:
        """Workers that push in different orders would wait for each other for ever."""
        self._lending = False
        if not self._queue:
            return
        if self._clock.now - self._landed_at >= LEND_AFTER:
            self._lent = max(2 * self._lent, self._ahead)
        self.link.kick()
