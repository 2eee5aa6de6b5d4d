"""The note before the payload of a contribution to a store key, 32 little-endian bytes, and what comes of one. Mirrors
csrc/wire/note.h.

The fields are in docs/reference/protocol.md.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from functools import reduce
from operator import or_

from byteps_like.errors import CorruptError
from byteps_like.wire.crc32c import Buffer

NOTE_BYTES = 32
_LAYOUT = struct.Struct("<I4f3I")


class NoteBit(IntFlag):
    """Bits of `Note.bits`."""

    LAST_BLOCK = 1
    """Nothing follows of what its source has set out to bring."""
    PARTIAL = 2
    """It is a part of that, and others follow."""
    INITIAL = 4
    """It is the first value of the key."""


class Applied(IntEnum):
    """What became of a contribution, as its source is told."""

    COUNTED = 0
    LATE = 1
    HELD = 2
    NOT_FINITE = 3


def encode_ranks(ranks: Iterable[int]) -> bytes:
    """A set of ranks as APPLIED carries it: bit r of byte r // 8 is rank r."""
    bits = reduce(or_, (1 << rank for rank in ranks), 0)
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def decode_ranks(data: Buffer) -> tuple[int, ...]:
    """The ranks in it, ascending."""
    bits = int.from_bytes(data, "little")
    return tuple(rank for rank in range(bits.bit_length()) if bits >> rank & 1)


@dataclass(frozen=True, slots=True)
class Note:
    """What a server must know of one contribution. Floats travel as fp32."""

    base: int = 0
    """The version that it was computed on."""
    weight: float = 1.0
    """Above 0."""
    lr: float = math.nan
    """At least 0; NaN: the update's own."""
    loss: float = math.nan
    """NaN: not told."""
    time: float = 0.0
    """Seconds that it took to compute."""
    function: int = 0
    """Of its spec, from 1: what is done with it instead of the update; 0: that."""
    source: int = 0
    """0: the sender itself; others: not so far."""
    bits: int = NoteBit.LAST_BLOCK


def encode_note(note: Note) -> bytes:
    """The 32 bytes. Raises struct.error or OverflowError for a field out of its range: a caller's mistake."""
    n = note
    return _LAYOUT.pack(n.base, n.weight, n.lr, n.loss, n.time, n.function, n.source, n.bits)


def decode_note(data: Buffer) -> Note:
    """The note in the first 32 bytes of `data`. Raises CorruptError naming the field that is wrong."""
    if len(data) < NOTE_BYTES:
        raise CorruptError(f"a note has {NOTE_BYTES} bytes, not {len(data)}")
    note = Note(*_LAYOUT.unpack_from(data))
    if not 0 < note.weight < math.inf:
        raise CorruptError(f"note: weight {note.weight} is not a number above 0")
    if note.lr < 0 or math.isinf(note.lr):
        raise CorruptError(f"note: lr {note.lr} is not a number from 0")
    if not 0 <= note.time < math.inf:
        raise CorruptError(f"note: time {note.time} is not a number from 0")
    if note.bits >= 2 * NoteBit.INITIAL:
        raise CorruptError(f"note: bits {note.bits} are unknown")
    return note
