"""A summation server in slow, obvious Python behind `FrameLink`s: what the door and the worker meet in tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from byteps_like.control.types import Member, MemberRole, View
from byteps_like.dtypes import Op
from byteps_like.errors import Code, ShutdownError
from byteps_like.server.door import Door, DoorConfig
from byteps_like.wire.door import Hello
from byteps_like.wire.frame import FrameType, Header, decode_header, seal
from byteps_like.wire.wakeup import Wakeup

INCARNATION = bytes(range(16))
FIRST = 7  # rank 0's member number
SERVER = 3  # the server's
SECRET = b"0123456789abcdef0123456789abcdef"
NUMPY = {0: np.float32, 1: np.float64, 4: np.int8, 5: np.uint8, 6: np.int32, 7: np.int64}


def world_of(epoch: int, size: int, incarnation: bytes = INCARNATION) -> View:
    """`size` workers, and one server."""
    workers = tuple(Member(MemberRole.WORKER, rank, "h", "host", 1, number=FIRST + rank) for rank in range(size))
    server = Member(MemberRole.SERVER, 0, "h", "host", 1, number=SERVER)
    return View("job", epoch, workers, (server,), incarnation=incarnation)


class Round:
    """All contributions to one (key, round), kept whole; results are cut through as far as all ranks have come."""

    def __init__(self, first: Header) -> None:
        self.first = first
        self.parts: dict[int, bytearray] = {}
        self.answered: dict[int, int] = {}

    def push(self, header: Header, payload: bytes) -> None:
        part = self.parts.setdefault(header.member - FIRST, bytearray())
        self.answered.setdefault(header.member - FIRST, 0)
        assert header.offset <= len(part), "a gap in the contribution"
        part += payload[len(part) - header.offset :]

    def complete(self, size: int) -> int:
        if len(self.parts) < size:
            return 0
        if self.first.op == Op.BROADCAST:
            return len(self.parts[self.first.root])
        return min(len(part) for part in self.parts.values()) // 8 * 8 if not self.full(size) else self.first.total

    def full(self, size: int) -> bool:
        return len(self.parts) == size and all(len(part) == self.first.total for part in self.parts.values())

    def result(self, start: int, end: int) -> bytes:
        if self.first.op == Op.BROADCAST:
            return bytes(self.parts[self.first.root][start:end])
        dtype = NUMPY[self.first.dtype]
        pieces = [np.frombuffer(bytes(self.parts[rank][start:end]), dtype) for rank in sorted(self.parts)]
        total = np.sum(pieces, axis=0, dtype=dtype)
        return (total // len(pieces) if self.first.op == Op.AVERAGE else total).astype(dtype).tobytes()


class FakeLink:
    """One end of a link to a FakeStore."""

    def __init__(self, store: FakeStore, rank: int) -> None:
        self.store, self.rank = store, rank
        self.wakeup = Wakeup()
        self.inbox: list[tuple[bytes, bytes]] = []
        self.error: Exception | None = None
        self.closed = False

    def fileno(self) -> int:
        return self.wakeup.fileno()

    def send(self, header: bytes, payload: bytes) -> None:
        if self.error is not None:
            raise self.error
        self.store.take(self, decode_header(header), bytes(payload))

    def recv(self) -> list[tuple[bytes, bytes]]:
        self.wakeup.clear()
        if self.error is not None:
            raise self.error
        with self.store.lock:
            frames, self.inbox = self.inbox, []
        return frames

    def give(self, header: Header, payload: bytes = b"") -> None:
        with self.store.lock:
            self.inbox.append((seal(header, payload), payload))
        self.wakeup.set()

    def close(self) -> None:
        self.closed = True
        self.store.links.pop(self.rank, None)
        self.wakeup.close()


class FakeStore:
    """One shard. `drop_after` breaks every link once that many frames have come, as often as `drops` says."""

    def __init__(self, size: int, *, drop_after: int = 0, drops: int = 0) -> None:
        self.size, self.drop_after, self.drops = size, drop_after, drops
        self.lock = threading.RLock()
        self.links: dict[int, FakeLink] = {}
        self.rounds: dict[tuple[int, int], Round] = {}
        self.frames: list[Header] = []

    def open_link(self, member: int) -> FakeLink:
        rank = member - FIRST
        with self.lock:
            self.links[rank] = FakeLink(self, rank)
            return self.links[rank]

    def take(self, link: FakeLink, header: Header, payload: bytes) -> None:
        with self.lock:
            self.frames.append(header)
            if self.drops and len(self.frames) % self.drop_after == 0:
                self.drops -= 1
                link.error = ShutdownError("the link broke (on purpose)")
                link.wakeup.set()
            else:
                self.handle(link, header, payload)

    def handle(self, link: FakeLink, header: Header, payload: bytes) -> None:
        if header.type == FrameType.PUSH:
            self._push(link, header, payload)
        elif header.type == FrameType.RESUME:
            self._resume(link, header)

    def _push(self, link: FakeLink, header: Header, payload: bytes) -> None:
        current = self.rounds.setdefault((header.key, header.round), Round(header))
        if (header.total, header.op, header.dtype) != (current.first.total, current.first.op, current.first.dtype):
            ranks = header.member - FIRST, current.first.member - FIRST
            text = f"rank {ranks[0]} and rank {ranks[1]} disagree on key {header.key}".encode()
            error = Header(FrameType.ERROR, view=header.view, aux=Code.MISMATCH)
            for each in self.links.values():
                each.give(replace(error, member=FIRST + each.rank), text)
            return
        current.push(header, payload)
        self._answer(current)

    def _resume(self, link: FakeLink, header: Header) -> None:
        current = self.rounds.get((header.key, header.round))
        counted = 0
        rank = header.member - FIRST
        if current is not None and rank in current.parts:
            counted = len(current.parts[rank])
            current.answered[rank] = header.offset
        link.give(replace(header, type=FrameType.RESUMED, offset=counted))
        if current is not None:
            self._answer(current)

    def _answer(self, current: Round) -> None:
        end = current.complete(self.size)
        for rank, start in list(current.answered.items()):
            link = self.links.get(rank)
            if link is None or link.error is not None or start >= end:
                continue
            header = replace(current.first, type=FrameType.RESULT, member=FIRST + rank, offset=start)
            link.give(header, current.result(start, end))
            current.answered[rank] = end


@contextmanager
def door_to(
    *shards: FakeStore, epoch: int = 1, secret: bytes = SECRET, url: str = "tcp://127.0.0.1:*"
) -> Iterator[Door]:
    """A running door on loopback before fake shards."""

    def open_link(hello: Hello, shard: int) -> FakeLink:
        return shards[shard].open_link(hello.member)

    door = Door(DoorConfig(url, "job", secret, len(shards), open_link))
    door.set_view(world_of(epoch, shards[0].size), 0)
    try:
        yield door
    finally:
        door.stop()
