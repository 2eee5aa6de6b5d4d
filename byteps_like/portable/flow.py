"""What a portable worker has under way at one server: order, credit, and what to say again on a new link. No I/O."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable

from byteps_like.portable.transfer import Transfer
from byteps_like.wire.crc32c import Buffer
from byteps_like.wire.frame import FrameType, Header

MOST_ACTIVE = 1024
"""Partitions in flight per server: bounds the messages that can wait at the door."""

URGENT = 1 << 31
"""Above every priority: that of frames without a payload."""

_ALIGNMENT = 8


def whole_elements(nbytes: int) -> int:
    """The longest segment of at most so many bytes that splits no element, whatever its type."""
    return max(_ALIGNMENT, nbytes - nbytes % _ALIGNMENT)


class Flow:
    """Transfers by priority, then by age, at most `credit` bytes of them in flight (but always one). One thread.

    `finished` is called with each transfer whose result is complete.
    """

    def __init__(self, segment: int, credit: int, finished: Callable[[Transfer], None]) -> None:
        self.set_segment(segment)
        self.credit = credit
        self._finished = finished
        self._order = 0
        self._waiting: list[tuple[int, int, Transfer]] = []
        self._pushing: list[tuple[int, int, Transfer]] = []
        self._resumes: deque[Transfer] = deque()
        self._active: dict[tuple[int, int], Transfer] = {}
        self._in_flight = 0

    def set_segment(self, nbytes: int) -> None:
        """The largest payload of a frame from now on; rounded down so that no segment splits an element."""
        self._segment = whole_elements(nbytes)

    def submit(self, transfer: Transfer) -> None:
        """Queues a partition."""
        self._queue(self._waiting, transfer)

    def new_link(self) -> None:
        """Nothing is known to have arrived: asks for each transfer in flight how far it came."""
        self._pushing.clear()
        self._resumes.clear()
        for transfer in self._active.values():
            if transfer.begun or transfer.resuming:
                self._resumes.append(transfer)
            else:
                self._queue(self._pushing, transfer)

    def has_frame(self) -> bool:
        """Whether `next_frame` has one."""
        while self._pushing and not self._pushing[0][2].wants_to_push:
            heapq.heappop(self._pushing)
        self._activate()
        return bool(self._resumes or self._pushing)

    def urgency(self) -> int | None:
        """The priority of the frame that goes next; None: there is none."""
        if not self.has_frame():
            return None
        return URGENT if self._resumes else self._pushing[0][2].priority

    def next_frame(self) -> tuple[int, Header, Buffer]:
        """Shard, header and payload of the frame that goes next; it counts as sent. Call `has_frame` before."""
        if self._resumes:
            transfer = self._resumes.popleft()
            return transfer.shard, transfer.resume(), b""
        transfer = self._pushing[0][2]
        header, payload = transfer.next_push(self._segment)
        transfer.sent(len(payload))
        return transfer.shard, header, payload

    def take(self, header: Header, payload: Buffer) -> bool:
        """A RESULT or RESUMED frame; False if it is of no transfer in flight. Raises CorruptError for a gap."""
        transfer = self._active.get((header.key, header.round))
        if transfer is None:
            return False
        if header.type == FrameType.RESULT:
            if transfer.land(header, payload):
                del self._active[transfer.key, transfer.round]
                self._in_flight -= transfer.total
                self._finished(transfer)
        elif transfer.resuming:
            transfer.resumed(header)
            self._queue(self._pushing, transfer)
        return True

    def clear(self) -> None:
        """Forgets all transfers."""
        for each in (self._waiting, self._pushing, self._resumes, self._active):
            each.clear()
        self._in_flight = 0

    def _queue(self, heap: list[tuple[int, int, Transfer]], transfer: Transfer) -> None:
        self._order += 1
        heapq.heappush(heap, (-transfer.priority, self._order, transfer))

    def _activate(self) -> None:
        while self._waiting and len(self._active) < MOST_ACTIVE:
            transfer = self._waiting[0][2]
            if self._active and self._in_flight + transfer.total > self.credit:
                return
            heapq.heappop(self._waiting)
            self._active[transfer.key, transfer.round] = transfer
            self._in_flight += transfer.total
            self._queue(self._pushing, transfer)
