"""Lists of rows by number, as a table's server knows them on this link: as csrc/engine/keeping/row_numbers.h does."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from byteps_like.wire.crc32c import crc32c
from byteps_like.wire.frame import MOST_LISTS, FrameType, Header

MOST_BYTES = 64 << 20
"""Of ids that a server keeps for this rank beside those that are in use."""


@dataclass(frozen=True)
class SentRows:
    """Ids, ascending u64, as they travel."""

    ids: bytes
    crc: int = field(init=False)
    """CRC32C of the bytes."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "crc", crc32c(self.ids))

    def __len__(self) -> int:
        """How many ids there are."""
        return len(self.ids) // 8


@dataclass(eq=False, slots=True)
class _Slot:
    rows: SentRows
    number: int
    told: int = 0
    """Bytes."""
    known: bool = False
    users: int = 0


class RowNumbers:
    """A list has a number as long as somebody holds it, and then until another one needs it."""

    def __init__(self, numbers: int = MOST_LISTS, nbytes: int = MOST_BYTES) -> None:
        self._most, self._most_bytes, self._bytes = numbers, nbytes, 0
        self._slots: OrderedDict[bytes, _Slot] = OrderedDict()
        """By ids; that which was used longest ago first."""
        self._by_number: dict[int, _Slot] = {}
        self._free: list[int] = []
        self._stale: list[int] = []
        """Free ones under which the server has a list."""

    def hold(self, rows: SentRows) -> int | None:
        """Its number, its own until `release`; None: all belong to others that are in use."""
        slot = self._slots.get(rows.ids) or self._new(rows)
        if slot is None:
            return None
        slot.users += 1
        self._slots.move_to_end(rows.ids)
        while self._bytes > self._most_bytes and self._evict():
            pass
        return slot.number

    def release(self, number: int) -> None:
        """Held once less."""
        self._by_number[number].users -= 1

    def known(self, number: int) -> bool:
        """Whether the server has the list."""
        return self._by_number[number].known

    def announce(self, number: int, most: int) -> tuple[Header, memoryview]:
        """The next frame of those that tell a list, at most so many bytes of it; but for whose key it is. First a
        server is told of lists that it need not keep: theirs are empty ones from now on."""
        if self._stale:
            return Header(FrameType.KEYS, aux=self._stale.pop()), memoryview(b"")
        slot = self._by_number[number]
        begin, end = slot.told, min(len(slot.rows.ids), slot.told + max(most // 8, 1) * 8)
        slot.told, slot.known = end, end == len(slot.rows.ids)
        header = Header(
            FrameType.KEYS, aux=number, root=slot.rows.crc, total=len(slot.rows.ids), offset=begin, length=end - begin
        )
        return header, memoryview(slot.rows.ids)[begin:end]

    def lacks(self, number: int, crc: int) -> None:
        """The server does not know a list of this checksum by this number."""
        slot = self._by_number.get(number)
        if slot is not None and slot.rows.crc == crc:
            slot.told, slot.known = 0, False

    def new_link(self) -> None:
        """No list is known."""
        self._stale.clear()
        for slot in self._by_number.values():
            slot.told, slot.known = 0, False

    def _new(self, rows: SentRows) -> _Slot | None:
        if not self._free and len(self._by_number) >= self._most and not self._evict():
            return None
        number = self._free.pop() if self._free else len(self._by_number)
        if number in self._stale:
            self._stale.remove(number)
        slot = self._slots[rows.ids] = self._by_number[number] = _Slot(rows, number)
        self._bytes += len(rows.ids)
        return slot

    def _evict(self) -> bool:
        oldest = next((slot for slot in self._slots.values() if not slot.users), None)
        if oldest is None:
            return False
        del self._slots[oldest.rows.ids], self._by_number[oldest.number]
        self._bytes -= len(oldest.rows.ids)
        self._free.append(oldest.number)
        if oldest.told or oldest.known:
            self._stale.append(oldest.number)
        return True
