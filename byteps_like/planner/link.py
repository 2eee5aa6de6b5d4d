"""Links: segments over the sender's network card and the receiver's, both full duplex and shared by all of a host.

A card sends one segment after the other; of links that all have something to send each gets its share of the line,
equal ones unless said otherwise, as the kernel shares a line among connections. A segment begins to come in as soon as
its first packets arrive (cut-through), unless others are there, of which each link gets its share, too: TCP is not
fair where connections meet. What goes next on a link is decided when there is room for it below: what preempts is the
segment.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from byteps_like.planner.clock import SimulatedClock

HEADER_BYTES = 64
"""Of each segment: csrc/wire/frame.h."""


class Segment(NamedTuple):
    """One wire write: `nbytes` from `offset` on of `what`, which only the two ends understand."""

    what: Any
    offset: int
    nbytes: int


class SegmentSource(Protocol):
    """Where a link gets its segments from."""

    def next_segment(self) -> Segment | None:
        """What goes first now, or nothing; whoever has something later kicks the link."""

    def sent(self, segment: Segment) -> None:
        """It has left the card."""


class NicModel:
    """One direction of a host's network card: `rate` in bytes per second, `frame` seconds on top for each segment."""

    def __init__(self, clock: SimulatedClock, name: str, rate: float, frame: float = 0.0) -> None:
        self.name = name
        self.busy = 0.0
        self.nbytes = 0.0
        self._clock = clock
        self._rate = rate
        self._frame = frame
        self._arrived: list[tuple[float, int, Link, Segment]] = []
        self._landing = False
        self._landed = 0.0
        self._links: list[tuple[float, int, Link]] = []
        self._turns = 0
        self._fair = 0.0
        self._sending = False

    def time(self, nbytes: int, weight: float) -> float:
        """How long a segment takes that counts `weight` times."""
        return weight * (self._frame + (nbytes + HEADER_BYTES) / self._rate)

    def kick(self, link: Link) -> None:
        """`link` has something to send."""
        link.fair = max(link.fair, self._fair)
        self._queue(link)
        if not self._sending:
            self._send()

    def _queue(self, link: Link) -> None:
        self._turns += 1
        heapq.heappush(self._links, (link.fair, self._turns, link))

    def _send(self) -> None:
        """The link that has had least, for its share, sends its next segment (start-time fair queueing)."""
        self._sending = False
        while self._links:
            self._fair, _, link = heapq.heappop(self._links)
            segment = link.take()
            if segment is None:
                continue
            self._sending = True
            link.fair += (segment.nbytes + HEADER_BYTES) / link.share
            self._queue(link)
            seconds = self._count(segment, link.weights[0])
            end = self._clock.now + seconds
            incoming = link.target.time(segment.nbytes, link.weights[1])
            self._clock.at(max(self._clock.now, end - incoming) + link.latency, link.target.arrive, link, segment)
            self._clock.at(end, self._sent, link, segment)
            return

    def _sent(self, link: Link, segment: Segment) -> None:
        link.source.sent(segment)
        self._send()

    def arrive(self, link: Link, segment: Segment) -> None:
        """The first of a segment that comes in."""
        link.landed = max(link.landed, self._landed)
        self._turns += 1
        heapq.heappush(self._arrived, (link.landed, self._turns, link, segment))
        link.landed += (segment.nbytes + HEADER_BYTES) / link.luck
        if not self._landing:
            self._land()

    def _land(self) -> None:
        self._landing = bool(self._arrived)
        if self._arrived:
            self._landed, _, link, segment = heapq.heappop(self._arrived)
            self._clock.at(self._clock.now + self._count(segment, link.weights[1]), self._has_landed, link, segment)

    def _has_landed(self, link: Link, segment: Segment) -> None:
        self._land()
        link.deliver(segment)

    def _count(self, segment: Segment, weight: float) -> float:
        seconds = self.time(segment.nbytes, weight)
        self.busy += seconds
        self.nbytes += weight * segment.nbytes
        return seconds


class Link:
    """A connection from one process to another.

    `weights`: how often a segment counts on the sender's and on the receiver's card, where one link stands for many
    alike. `unsent`: bytes that lie in the kernel before the card takes them and can't be overtaken any more. `share`:
    of the sender's card, relative to its other links; `luck`: the same of the receiver's.
    """

    def __init__(
        self,
        cards: tuple[NicModel, NicModel],
        source: SegmentSource,
        deliver: Callable[[Segment], None],
        *,
        latency: float = 0.0,
        weights: tuple[float, float] = (1.0, 1.0),
        unsent: int = 0,
        share: float = 1.0,
        luck: float = 1.0,
    ) -> None:
        self.fair = self.landed = 0.0
        self.share, self.luck = share, luck
        self.source, self.deliver = source, deliver
        self.latency, self.weights = latency, weights
        self.target = cards[1]
        self._card = cards[0]
        self._unsent = unsent
        self._waiting: deque[Segment] = deque()
        self._held = 0
        self._in_turn = False

    def kick(self) -> None:
        """The source may have something."""
        self._fill(0)
        if not self._in_turn:
            self._in_turn = True
            self._card.kick(self)

    def take(self) -> Segment | None:
        """The card's: the next segment."""
        self._fill(1)
        if not self._waiting:
            self._in_turn = False
            return None
        segment = self._waiting.popleft()
        self._held -= segment.nbytes
        self._fill(0)
        return segment

    def _fill(self, least: int) -> None:
        while len(self._waiting) < least or self._held < self._unsent:
            segment = self.source.next_segment()
            if segment is None:
                return
            self._waiting.append(segment)
            self._held += segment.nbytes
