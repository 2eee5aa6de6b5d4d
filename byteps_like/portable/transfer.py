"""One partition on its way to its shard and back: which frames it sends, where results land."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field, replace

from byteps_like.dtypes import DType, Op
from byteps_like.errors import CorruptError
from byteps_like.portable.handle import PortableHandle
from byteps_like.wire.crc32c import Buffer
from byteps_like.wire.frame import FrameType, Header
from byteps_like.worker.api import Partition


def memory_at(address: int, nbytes: int) -> memoryview:
    """The bytes at an address, writable. Whoever owns them keeps them alive."""
    return memoryview((ctypes.c_char * nbytes).from_address(address)).cast("B")


_NOTHING = memoryview(b"")


@dataclass(eq=False, slots=True)
class Transfer:
    """A contribution and its result, both at `memory`. What was pushed and what has landed are always prefixes.

    Without `contributes` this rank only receives a broadcast: it subscribes with an empty push.
    """

    dtype: DType
    op: Op
    root: int
    priority: int
    contributes: bool
    handle: PortableHandle
    server: int = 0
    shard: int = 0
    key: int = 0
    round: int = 0
    memory: memoryview = _NOTHING
    begun: bool = field(default=False, init=False)
    pushed: int = field(default=0, init=False)
    landed: int = field(default=0, init=False)
    resuming: bool = field(default=False, init=False)

    def of(self, part: Partition, number: int, memory: memoryview) -> Transfer:
        """The same operation on one partition, in its round `number`."""
        return replace(self, server=part.server, shard=part.shard, key=part.key, round=number, memory=memory)

    @property
    def total(self) -> int:
        """Bytes of the partition."""
        return len(self.memory)

    @property
    def wants_to_push(self) -> bool:
        """Whether `next_push` has something to say now."""
        if self.resuming:
            return False
        return not self.begun or (self.contributes and self.pushed < self.total)

    def next_push(self, segment: int) -> tuple[Header, memoryview]:
        """The next segment of the contribution, at most `segment` bytes. Call `sent` when it is on its way."""
        end = min(self.total, self.pushed + segment) if self.contributes else 0
        return self._header(FrameType.PUSH, self.pushed), self.memory[self.pushed : end]

    def sent(self, nbytes: int) -> None:
        """The segment of `next_push` was handed over."""
        self.begun = True
        self.pushed += nbytes

    def resume(self) -> Header:
        """The question to ask on a new link; nothing is pushed until `resumed`."""
        self.resuming = True
        return self._header(FrameType.RESUME, self.landed)

    def resumed(self, header: Header) -> None:
        """The shard has counted `header.offset` bytes: go on from there."""
        if header.offset > self.total:
            raise CorruptError(f"RESUMED names byte {header.offset} of a partition of {self.total}")
        self.resuming = False
        self.pushed = header.offset if self.contributes else 0
        self.begun = self.pushed > 0

    def land(self, header: Header, payload: Buffer) -> bool:
        """Takes a segment of the result into place; True when all of it is there. Raises CorruptError for a gap."""
        if header.total != self.total or header.offset > self.landed:
            raise CorruptError(
                f"result of key {self.key:#x} round {self.round} goes on at byte {header.offset} of {header.total}; "
                f"expected {self.landed} of {self.total}"
            )
        end = header.offset + header.length
        if end > self.landed:
            self.memory[self.landed : end] = memoryview(payload)[self.landed - header.offset :]
            self.landed = end
        return self.landed == self.total

    def _header(self, kind: FrameType, offset: int) -> Header:
        return Header(
            kind, self.dtype, self.op, key=self.key, round=self.round, priority=self.priority, offset=offset,
            total=self.total, root=self.root,
        )  # fmt: skip
