"""One portable worker at the door: its native links, and what it may send through them."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Protocol

from byteps_like.errors import BytePSLikeError, CapacityError, CorruptError
from byteps_like.wire.crc32c import Buffer
from byteps_like.wire.door import Hello
from byteps_like.wire.frame import NACKED_ROWS, FrameFlag, FrameType, Header, check_payload, decode_header
from byteps_like.wire.note import NOTE_BYTES, Applied

SEGMENT = 1 << 20  # largest payload a worker may send
WINDOW = 32 << 20  # most bytes of contributions a worker may have unanswered

_ALLOWED = frozenset(
    {FrameType.PUSH, FrameType.RESUME, FrameType.ERROR, FrameType.GOODBYE, FrameType.SPEC, FrameType.PULL,
     FrameType.KEYS, FrameType.ROWS, FrameType.FETCH, FrameType.CLOCK, FrameType.CALL,
     FrameType.CUT, FrameType.STATE}
)  # fmt: skip


class FrameLink(Protocol):
    """A native link inside this process, as some rank, to one shard (`_core.InprocLink`). One thread only."""

    def fileno(self) -> int:
        """Readable when `recv` has something to give or to raise."""

    def send(self, header: bytes, payload: Buffer) -> None:
        """Takes a frame along, payload copied. Raises the typed error of a dead link."""

    def recv(self) -> list[tuple[bytes, bytes]]:
        """All frames that have come, (header, payload) each. Raises the typed error of a dead link."""

    def close(self) -> None:
        """Ends the link. Idempotent."""


LinkOpener = Callable[[Hello, int], FrameLink]
"""Opens a link for whoever said HELLO to a shard; blocks for the handshake; raises its typed error."""


class Unanswered:
    """Bytes of contributions that a worker has pushed, and has no answer to.

    Of a store key those of one contribution don't count: other ranks decide when it is answered, and its value takes as
    much memory anyway. Of a table, whose contributions differ, that is the largest.
    """

    def __init__(self) -> None:
        self._of_rounds = 0
        self._totals: dict[tuple[int, int], int] = {}
        """Bytes of a contribution to each store key, by shard and key."""
        self._of_stores: Counter[tuple[int, int]] = Counter()
        self._excess = 0

    @property
    def nbytes(self) -> int:
        """Those that count."""
        return self._of_rounds + self._excess

    def pushed(self, shard: int, header: Header) -> None:
        """A frame to that shard."""
        key = shard, header.key
        if header.type == FrameType.SPEC:
            self._set(key, 0)  # a first value gets no answer of its own
            self._totals[key] = header.total
        elif header.type in (FrameType.PUSH, FrameType.ROWS) and key in self._totals:
            if header.type == FrameType.ROWS:
                self._allow(key, header.total)
            noted = NOTE_BYTES if header.flags & FrameFlag.NOTED else 0
            self._set(key, self._of_stores[key] + header.length - noted)
        elif header.type == FrameType.PUSH:
            self._of_rounds += header.length

    def answered(self, shard: int, header: Header) -> None:
        """A frame from that shard."""
        key = shard, header.key
        if header.type == FrameType.APPLIED and header.aux != Applied.HELD:
            self._set(key, self._of_stores[key] - header.total)
        elif header.type == FrameType.NACK and header.total == NACKED_ROWS:
            self._set(key, 0)  # they come again
        elif header.type == FrameType.RESULT and key not in self._totals:
            self._of_rounds = max(0, self._of_rounds - header.length)

    def _allow(self, key: tuple[int, int], total: int) -> None:
        before = self._of_stores[key]
        self._set(key, 0)
        self._totals[key] = max(self._totals[key], total)
        self._set(key, before)

    def _set(self, key: tuple[int, int], nbytes: int) -> None:
        most = self._totals.get(key, 0)
        self._excess += max(0, nbytes - most) - max(0, self._of_stores[key] - most)
        self._of_stores[key] = max(0, nbytes)


class DoorSession:
    """The links of one connected worker. Raises typed errors; the door ends the session of which one came."""

    def __init__(self, peer: bytes, hello: Hello, rank: int, shards: int, open_link: LinkOpener) -> None:
        self.peer = peer
        self.rank = rank
        self.member = hello.member
        self.view = hello.view
        self.links: list[FrameLink] = []
        self.leaving = False  # the worker has said goodbye: its links may end
        self.unsent: deque[list[Buffer]] = deque()
        """Messages for which there was no room on the way to the worker. Meanwhile its links are not read."""
        self.paused = False
        """Whether that is so."""
        self.last_sent = time.monotonic()
        self._unanswered = Unanswered()
        try:
            for shard in range(shards):
                self.links.append(open_link(hello, shard))
        except BytePSLikeError:
            self.close()
            raise

    def forward(self, shard: int, header_bytes: Buffer, payload: Buffer) -> None:
        """Passes a worker's frame on to its shard, checked."""
        header = decode_header(header_bytes)
        if header.view != self.view:
            return  # stale
        self._check(shard, header)
        check_payload(header, payload)
        self.leaving |= header.type == FrameType.GOODBYE
        self._unanswered.pushed(shard, header)
        if self._unanswered.nbytes > max(WINDOW, header.total) + SEGMENT:
            text = f"rank {self.rank} pushed {self._unanswered.nbytes} bytes ahead of their results"
            raise CapacityError(text, rank=self.rank)
        self.links[shard].send(bytes(header_bytes), payload)

    def _check(self, shard: int, header: Header) -> None:
        if shard >= len(self.links):
            raise CorruptError(f"frame for shard {shard} of {len(self.links)}")
        if header.member != self.member:
            raise CorruptError(f"frame of member {header.member} in the session of member {self.member}")
        if header.type is FrameType.CODEC or header.flags & FrameFlag.ENCODED:
            raise CorruptError(
                "encoded rounds are not supported by portable workers, which push and pull raw or cast data"
            )
        if header.type not in _ALLOWED or header.flags & (FrameFlag.BY_REFERENCE | FrameFlag.ABSENT):
            raise CorruptError(f"{header.type.name} frame (flags {header.flags}) can't pass the door")
        if header.length > SEGMENT:
            raise CorruptError(f"segment of {header.length} bytes; the door takes {SEGMENT}")

    def answers(self, shard: int) -> list[tuple[bytes, bytes]]:
        """The frames that the shard has sent."""
        frames = self.links[shard].recv()
        for header, _ in frames:
            self._unanswered.answered(shard, decode_header(header))
        return frames

    def close(self) -> None:
        """Closes the links. Idempotent."""
        for link in self.links:
            link.close()
