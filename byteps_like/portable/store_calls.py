"""What a portable worker calls on the values of one server: at each shard one call after the other. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from byteps_like.errors import BytePSLikeError, CorruptError, from_code
from byteps_like.portable.store_lane import Frame, StoreLane
from byteps_like.wire.crc32c import Buffer
from byteps_like.wire.frame import FrameType, Header

_NUMBERS = 1 << 32
"""Numbers of calls wrap on the wire."""

Answered = Callable[[BytePSLikeError | None, bytes], None]
"""Called once: with what has come of it, or why nothing has."""


@dataclass(eq=False, slots=True)
class LaneCall:
    """A call to one shard."""

    lanes: list[StoreLane]
    """Of all keys that it is about; the first names it."""
    here: int
    """Partitions of each tensor at this shard,"""
    parts: int
    """and in all."""
    text: bytes
    """As wire.call writes it."""
    answered: Answered
    type: FrameType = FrameType.CALL
    """Or CUT, STATE, which have numbers of their own."""
    clocks: list[int] = field(default_factory=list)
    """By lane, of the first contribution that it does not go behind."""

    def may_go(self) -> bool:
        """Whether all contributions before it have been sent on this link."""
        return all(lane.has_sent(clock) for lane, clock in zip(self.lanes, self.clocks, strict=True))


@dataclass(eq=False, slots=True)
class _AtShard:
    calls: deque[LaneCall] = field(default_factory=deque)
    """The first is asked for, or goes next."""
    number: int = 0
    """Its own."""
    sent: bool = False
    """On this link."""


class StoreCalls:
    """Those of one server. One thread."""

    def __init__(self) -> None:
        self._shards: dict[int, _AtShard] = {}

    def add(self, call: LaneCall) -> None:
        """Goes behind the contributions that its lanes have so far."""
        call.clocks = [lane.next_clock for lane in call.lanes]
        self._shards.setdefault(call.lanes[0].spec.shard, _AtShard()).calls.append(call)

    def new_link(self) -> None:
        """Nothing is known to have arrived."""
        for at in self._shards.values():
            at.sent = False

    def due(self) -> int | None:
        """A shard for which there is a call to send."""
        waiting = (shard for shard, at in self._shards.items() if at.calls and not at.sent)
        return next((shard for shard in waiting if self._shards[shard].calls[0].may_go()), None)

    def next_frame(self, shard: int) -> Frame:
        """That call; it counts as sent."""
        at = self._shards[shard]
        at.sent = True
        call = at.calls[0]
        header = Header(
            call.type, key=call.lanes[0].spec.key, round=at.number % _NUMBERS, aux=call.here, total=call.parts
        )
        return header, call.text

    def take(self, shard: int, header: Header, payload: Buffer) -> None:
        """An answer. Raises CorruptError for one to what was not called."""
        at = self._shards.get(shard, _AtShard())
        if header.round == (at.number - 1) % _NUMBERS:
            return  # it has come over an older link, too
        if not at.calls or not at.sent or header.round != at.number % _NUMBERS:
            raise CorruptError(f"call {header.round} was answered, which was not made")
        call = at.calls.popleft()
        at.number, at.sent = at.number + 1, False
        text = bytes(payload)
        call.answered(from_code(header.aux, text.decode(errors="replace")) if header.aux else None, text)

    def clear(self) -> None:
        """Forgets all."""
        self._shards.clear()
