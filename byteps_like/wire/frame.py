"""The frame header: 64 little-endian bytes before every payload. Mirrors csrc/wire/frame.h.

The fields are in docs/reference/protocol.md.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from enum import IntEnum, IntFlag

from byteps_like.dtypes import DType, Op
from byteps_like.errors import CorruptError
from byteps_like.wire.crc32c import Buffer, crc32c
from byteps_like.wire.note import NOTE_BYTES

MAGIC = 0x324C5042  # "BPL2"
HEADER_BYTES = 64
MAX_PAYLOAD = 16 << 20
MAX_PARTITION = 1 << 30
MAX_TEXT = 64 << 10
MAX_RANKS = 8 << 10
"""Bytes of the ranks of an APPLIED."""
MAX_STATE = 1 << 20
"""Bytes of a CUT or STATE."""
MAX_OFFSET = 1 << 48
DEFAULT_SEGMENT = 128 << 10
MOST_LISTS = 1024
"""Lists of ids that a link may have for a table."""
RANGE = 0xFFFFFFFF
"""In place of a list's number: ids from one to another."""
UNKNOWN = 0xFFFFFFFF
"""Version of a row that a reader doesn't have."""
NACKED_ROWS, NACKED_FETCH = 1, 2
"""What a NACK refuses, in its `total`."""
PRELUDE_KEY = 1 << 63
"""In the keys of rounds that agree on something before a codec encodes; never in those of tensors."""
SHARE_SHIFT = 56
"""From this bit of a key on, below PRELUDE_KEY: the number of a share plus 1 (worker.shares), 0 for all of a partition.
"""
PARTITION_KEY = (1 << SHARE_SHIFT) - 1
"""The bits below: tensor and partition."""

_LAYOUT = struct.Struct("<I4B2IQIiQ5I")  # the checksum of these 60 bytes follows
_CHECKSUM = struct.Struct("<I")


class FrameType(IntEnum):
    """What a frame says; docs/reference/protocol.md has the meaning of each."""

    PUSH = 1
    RESULT = 2
    RESUME = 3
    RESUMED = 4
    REGION = 5
    ERROR = 6
    WARNING = 7
    GOODBYE = 8
    LAUNCH = 9
    DATA = 10
    CLEAR = 11
    CREDIT = 12
    ABORT = 13
    HURRY = 14
    FORGET = 15
    CODEC = 16
    SPEC = 17
    OPENED = 18
    APPLIED = 19
    PULL = 20
    VALUE = 21
    KEYS = 22
    ROWS = 23
    FETCH = 24
    NACK = 25
    CLOCK = 26
    CUTOFF = 27
    CUT = 28
    CALL = 29
    STATE = 31
    CONTRIBUTORS = 32
    OWNER = 34
    ADOPT = 35
    ADOPTED = 36
    TAKE = 37
    GIVE = 38
    COPY = 39
    COPIED = 40


_REFERABLE = frozenset({FrameType.PUSH, FrameType.RESULT})
_NOTABLE = frozenset({FrameType.PUSH, FrameType.ROWS, FrameType.CLOCK})
_LISTED = frozenset({FrameType.KEYS, FrameType.ROWS, FrameType.FETCH})
_SEGMENTS = _REFERABLE | _LISTED | {FrameType.DATA, FrameType.VALUE, FrameType.CLOCK, FrameType.GIVE, FrameType.COPY}
_TEXTS = frozenset(
    {
        FrameType.ERROR,
        FrameType.WARNING,
        FrameType.LAUNCH,
        FrameType.ABORT,
        FrameType.CODEC,
        FrameType.SPEC,
        FrameType.CALL,
    }
)
_SAVING = frozenset({FrameType.CUT, FrameType.STATE})
_OF_PARTITION = _REFERABLE | {
    FrameType.RESUME, FrameType.RESUMED, FrameType.PULL, FrameType.VALUE, FrameType.KEYS, FrameType.ROWS,
    FrameType.CLOCK, FrameType.CONTRIBUTORS, FrameType.GIVE,
}  # fmt: skip


class FrameFlag(IntFlag):
    """Bits of `Header.flags`."""

    NONE = 0
    BY_REFERENCE = 1
    MOVABLE = 2
    ENCODED = 4
    ABSENT = 8
    NOTED = 16
    SILENT = 32


_OF_STORES = FrameFlag.NOTED | FrameFlag.SILENT
_FLAGS = FrameFlag.BY_REFERENCE | FrameFlag.MOVABLE | FrameFlag.ENCODED | FrameFlag.ABSENT | _OF_STORES


@dataclass(frozen=True, slots=True)
class Header:
    """One frame's header. Unsigned fields but `priority`; `offset` and `total` count bytes of the partition."""

    type: FrameType
    dtype: DType = DType.FLOAT32
    op: Op = Op.SUM
    flags: int = 0
    view: int = 0
    member: int = 0
    key: int = 0
    round: int = 0
    priority: int = 0
    offset: int = 0
    length: int = 0
    total: int = 0
    payload_crc: int = 0
    aux: int = 0
    root: int = 0


def encode_header(header: Header) -> bytes:
    """The 64 bytes. Raises struct.error for a field out of its range: a caller's mistake, never a peer's."""
    h = header
    body = _LAYOUT.pack(
        MAGIC, h.type, h.dtype, h.op, h.flags, h.view, h.member, h.key, h.round, h.priority,
        h.offset, h.length, h.total, h.payload_crc, h.aux, h.root,
    )  # fmt: skip
    return body + _CHECKSUM.pack(crc32c(body))


def decode_header(data: Buffer) -> Header:
    """The header in `data`, of exactly 64 bytes. Raises CorruptError naming the field that is wrong."""
    if len(data) != HEADER_BYTES:
        raise CorruptError(f"frame header has {len(data)} bytes, not {HEADER_BYTES}")
    view = memoryview(data)
    fields = _LAYOUT.unpack(view[:60])
    if fields[0] != MAGIC:
        raise CorruptError(f"frame magic is {fields[0]:#010x}, not {MAGIC:#010x}: the peer speaks something else")
    if _CHECKSUM.unpack(view[60:])[0] != crc32c(view[:60]):
        raise CorruptError("frame header fails its checksum")
    return _checked(fields)


def _checked(fields: tuple[int, ...]) -> Header:
    try:
        header = Header(FrameType(fields[1]), DType(fields[2]), Op(fields[3]), *fields[4:])
    except ValueError as unknown:
        raise CorruptError(f"frame header: {unknown}") from None
    if header.flags & ~int(_FLAGS):
        raise CorruptError(f"frame flags {header.flags:#x} are unknown")
    _check_bounds(header)
    return header


def _check_bounds(header: Header) -> None:
    if header.length > MAX_PAYLOAD:
        raise CorruptError(f"frame length {header.length} is over the limit of {MAX_PAYLOAD}")
    if header.total > MAX_PARTITION:
        raise CorruptError(f"frame total {header.total} is over the limit of {MAX_PARTITION}")
    if header.offset > MAX_OFFSET:
        raise CorruptError(f"frame offset {header.offset} is over the limit of {MAX_OFFSET}")
    if header.type in _TEXTS and header.length > MAX_TEXT:
        raise CorruptError(f"frame length {header.length} is over the limit of {MAX_TEXT} for a text")
    _check_flags(header)
    by_reference = header.flags & FrameFlag.BY_REFERENCE
    if header.type is FrameType.APPLIED and header.length > MAX_RANKS:
        raise CorruptError(f"frame length {header.length} is over the limit of {MAX_RANKS} for a set of ranks")
    if header.type in _SAVING and header.length > MAX_STATE:
        raise CorruptError(f"frame length {header.length} is over the limit of {MAX_STATE} for a request")
    if header.length and (by_reference or header.type not in _SEGMENTS | _TEXTS | _SAVING | {FrameType.APPLIED}):
        raise CorruptError(f"frame length {header.length} is not zero for this {header.type.name}")
    if header.type is FrameType.RESUME and header.flags & FrameFlag.ENCODED:
        if header.offset > MAX_PARTITION:
            raise CorruptError(f"frame offset {header.offset} is over the limit of {MAX_PARTITION} for a result")
    elif header.type in _OF_PARTITION and not by_reference and header.offset + _counted(header) > header.total:
        raise CorruptError(f"frame offset {header.offset} + length {header.length} is over its total {header.total}")
    if header.type in _LISTED:
        _check_lists(header)


def _check_lists(header: Header) -> None:
    """Lists of ids by number, and payloads of whole numbers of 8 bytes."""
    of_range = header.type is FrameType.FETCH and header.aux == RANGE
    if header.aux >= MOST_LISTS and not of_range:
        raise CorruptError(f"frame aux {header.aux} is beyond the last list")
    if of_range and header.length != 16:
        raise CorruptError(f"frame length {header.length} is not that of a range")
    if header.type is not FrameType.ROWS and header.length % 8:
        raise CorruptError(f"frame length {header.length} is not a multiple of 8")
    if header.type is FrameType.KEYS and (header.total % 8 or header.offset % 8):
        raise CorruptError(f"frame total {header.total} or offset {header.offset} is not a multiple of 8")


def _counted(header: Header) -> int:
    """Bytes of the partition."""
    return max(0, header.length - NOTE_BYTES) if header.flags & FrameFlag.NOTED else header.length


def _check_flags(header: Header) -> None:
    resumed = header.type is FrameType.RESUME and header.flags == FrameFlag.ENCODED
    given = header.type is FrameType.GIVE and not header.flags & ~int(FrameFlag.MOVABLE | FrameFlag.ENCODED)
    if header.flags and header.type not in _REFERABLE | _NOTABLE and not (resumed or given):
        raise CorruptError(f"frame flags {header.flags} do not go with {header.type.name}")
    if header.flags & _OF_STORES or (header.flags and header.type is FrameType.ROWS) or header.type is FrameType.CLOCK:
        _check_noted(header)
    if header.flags & FrameFlag.BY_REFERENCE and header.flags & FrameFlag.ENCODED:
        raise CorruptError(f"frame flags {header.flags} are encoded and by reference")
    if header.flags & FrameFlag.ABSENT:
        if header.flags & (FrameFlag.BY_REFERENCE | FrameFlag.ENCODED):
            raise CorruptError(f"frame flags {header.flags} are absent, and by reference or encoded")
        if header.offset or header.length:
            raise CorruptError(f"frame offset {header.offset} or length {header.length} of an absent rank is not zero")


def _check_noted(header: Header) -> None:
    if header.type not in _NOTABLE or header.flags & ~int(_OF_STORES):
        raise CorruptError(f"frame flags {header.flags} do not go with one another, or with {header.type.name}")
    if header.flags & FrameFlag.NOTED and (header.offset or header.length < NOTE_BYTES):
        raise CorruptError(
            f"frame offset {header.offset}, length {header.length}: what is noted is a first segment behind a note"
        )
    if header.type is FrameType.CLOCK and (not header.flags & FrameFlag.NOTED or header.total):
        raise CorruptError(f"frame flags {header.flags}, total {header.total}: a CLOCK brings a note, and nothing else")


def seal(header: Header, payload: Buffer) -> bytes:
    """The 64 bytes of `header` with the length and the checksum of `payload` filled in."""
    return encode_header(replace(header, length=len(payload), payload_crc=crc32c(payload) if len(payload) else 0))


def check_payload(header: Header, payload: Buffer) -> None:
    """Raises CorruptError unless `payload` is what `header` announces."""
    if len(payload) != header.length:
        raise CorruptError(f"{header.type.name} frame carries {len(payload)} bytes and announces {header.length}")
    if header.length and crc32c(payload) != header.payload_crc:
        raise CorruptError(
            f"{header.type.name} payload of key {header.key:#x} round {header.round} fails its checksum",
            key=f"{header.key:#x}",
        )
