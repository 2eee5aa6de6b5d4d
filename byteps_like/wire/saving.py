"""What the frames CUT and STATE carry: meetings of all ranks, and what keys keep, to be read or replaced. Mirrors
csrc/wire/saving.h.

The layouts are in docs/reference/protocol.md, "Checkpoints".
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from byteps_like.errors import CorruptError
from byteps_like.wire.crc32c import Buffer

MAX_WORD = 1024
"""Bytes that a rank says in a CUT."""
MAX_SAVED = 512 << 10
"""Bytes of a value, of a state or of rows in a STATE."""
_NO_WORD = 0xFFFFFFFF
_HEAD = struct.Struct("<QQII")
_VERSION = struct.Struct("<Q")
_PAGE = struct.Struct("<QQ")
_ASIDE = struct.Struct("<IIQq")
_NO_SHARD = 0xFFFFFFFF


class StateRequest(IntEnum):
    """The first byte of a STATE."""

    HEADS = 1
    READ = 2
    ROWS = 3
    CLEAR = 4
    WRITE = 5
    WRITE_ROWS = 6
    COMMIT = 7
    GIVE_UP = 8
    SET_ASIDE = 9
    TAKE = 10
    TAKE_ROWS = 11
    LET_GO = 12


class SavedPart(IntEnum):
    """Of a dense value."""

    VALUE = 0
    STATE = 1


@dataclass(frozen=True)
class KeyHead:
    """What a key is, beside its bytes."""

    version: int
    state_bytes: int
    """Of the update's state; of a table: of a row's."""
    waiting: int
    """Contributions that are in no version yet."""
    clocks: tuple[int, ...]
    """By rank, how many of its contributions are applied, or late."""


@dataclass(frozen=True)
class AsideKey:
    """What a key of another world kept, as a shard of this one asks for it."""

    shard: int
    """Where it is, of all shards of this world."""
    epoch: int
    """That of its world,"""
    key: int
    """and its number there."""
    version: int


@dataclass(frozen=True)
class AsideHeads:
    """What was set aside at a shard."""

    shard: int
    """Of all that there are."""
    copies: list[int | None]
    """Of each key, another shard that has it, too."""
    heads: list[KeyHead]


def saved_row_bytes(nbytes: int) -> int:
    """Of a row of a table, whose value and state have `nbytes`: its id, version and number of updates before these."""
    return 8 + -(-(8 + nbytes) // 8) * 8


def encode_cut(keys: Sequence[int], word: bytes) -> bytes:
    """A rank has come, behind its contributions to `keys`, with a word for the others."""
    return struct.pack(f"<I{len(keys)}Q", len(keys), *keys) + word[:MAX_WORD]


def decode_words(payload: Buffer) -> list[bytes | None]:
    """What each rank has said; None of one that has left. Raises CorruptError for what makes no sense."""
    data, at, words = bytes(payload), 0, list[bytes | None]()
    while at < len(data):
        if len(data) - at < 4:
            raise CorruptError("the words of a cut end within a length")
        (length,) = struct.unpack_from("<I", data, at)
        at += 4
        if length == _NO_WORD:
            words.append(None)
            continue
        if length > len(data) - at:
            raise CorruptError("the words of a cut end within a word")
        words.append(data[at : at + length])
        at += length
    return words


def heads_most(ranks: int) -> int:
    """Of how many keys one request may ask for the heads."""
    return max(1, MAX_SAVED // (_HEAD.size + 8 * ranks))


def encode_heads(keys: Sequence[int]) -> bytes:
    """Asks for KeyHeads."""
    return bytes([StateRequest.HEADS]) + struct.pack(f"<{len(keys)}Q", *keys)


def decode_heads(payload: Buffer) -> list[KeyHead]:
    """Of each key. Raises CorruptError for what makes no sense."""
    data, at, heads = bytes(payload), 0, list[KeyHead]()
    try:
        while at < len(data):
            version, state_bytes, waiting, ranks = _HEAD.unpack_from(data, at)
            clocks = struct.unpack_from(f"<{ranks}q", data, at + _HEAD.size)
            heads.append(KeyHead(version, state_bytes, waiting, clocks))
            at += _HEAD.size + 8 * ranks
    except struct.error as error:
        raise CorruptError(f"heads of store keys make no sense: {error}") from None
    return heads


def encode_read(key: int, part: SavedPart, offset: int, nbytes: int) -> bytes:
    """Asks for some bytes of a value or of its state."""
    return struct.pack("<BQBQQ", StateRequest.READ, key, part, offset, nbytes)


def decode_read(payload: Buffer) -> tuple[int, memoryview]:
    """Their version, and the bytes."""
    if len(payload) < _VERSION.size:
        raise CorruptError("what a store key keeps has come without its version")
    return _VERSION.unpack_from(payload)[0], memoryview(payload)[_VERSION.size :]


def encode_rows(key: int, place: int) -> bytes:
    """Asks for rows of a table from a place on, 0 at first."""
    return struct.pack("<BQQ", StateRequest.ROWS, key, place)


def decode_rows(payload: Buffer) -> tuple[int, int, memoryview]:
    """The version, the place to go on from (0: that is all), and rows: see RowContent::Save."""
    if len(payload) < _PAGE.size:
        raise CorruptError("rows of a table have come without their version")
    version, place = _PAGE.unpack_from(payload)
    return version, place, memoryview(payload)[_PAGE.size :]


def encode_clear(key: int) -> bytes:
    """A restoration of a key begins: what another one has brought is dropped."""
    return struct.pack("<BQ", StateRequest.CLEAR, key)


def encode_write(key: int, part: SavedPart, offset: int, data: Buffer) -> bytes:
    """Brings some bytes of a value or of its state."""
    return struct.pack("<BQBQ", StateRequest.WRITE, key, part, offset) + bytes(data)


def encode_write_rows(key: int, rows: Buffer) -> bytes:
    """Brings rows of a table, as `decode_rows` gives them."""
    return struct.pack("<BQ", StateRequest.WRITE_ROWS, key) + bytes(rows)


def encode_commit(key: int, version: int) -> bytes:
    """What was brought is what the key keeps from here on."""
    return struct.pack("<BQQ", StateRequest.COMMIT, key, version)


def encode_give_up(key: int) -> bytes:
    """The restoration of a key ends, and what was brought is dropped."""
    return struct.pack("<BQ", StateRequest.GIVE_UP, key)


def encode_set_aside(keys: Sequence[int]) -> bytes:
    """What keys keep doesn't change any more, and is there in the next world; asks for AsideHeads."""
    return bytes([StateRequest.SET_ASIDE]) + struct.pack(f"<{len(keys)}Q", *keys)


def decode_set_aside(payload: Buffer, count: int) -> AsideHeads:
    """Of so many keys. Raises CorruptError for what makes no sense."""
    try:
        shard, *copies = struct.unpack_from(f"<I{count}I", payload)
    except struct.error as error:
        raise CorruptError(f"what was said to be set aside makes no sense: {error}") from None
    heads = decode_heads(memoryview(payload)[4 * (1 + count) :])
    return AsideHeads(shard, [None if one == _NO_SHARD else one for one in copies], heads)


def encode_take(key: int, part: SavedPart, target: int, aside: AsideKey, source: int, nbytes: int) -> bytes:
    """Some bytes that were set aside are to be a key's value or state, from `target` on."""
    head = struct.pack("<BQBQ", StateRequest.TAKE, key, part, target)
    return head + _aside(aside) + struct.pack("<BQQ", part, source, nbytes)


def encode_take_rows(key: int, aside: AsideKey, place: int, buckets: bytes) -> bytes:
    """A table is to have rows that were set aside, from a place on, 0 at first: those of `buckets`, a bit each."""
    return struct.pack("<BQ", StateRequest.TAKE_ROWS, key) + _aside(aside) + struct.pack("<Q", place) + buckets


def decode_take_rows(payload: Buffer) -> int:
    """The place to go on from; 0: that was all."""
    if len(payload) != _PAGE.size:
        raise CorruptError("where rows that were set aside go on makes no sense")
    _, place = _PAGE.unpack(payload)
    return int(place)


def encode_let_go(shard: int) -> bytes:
    """What that shard has set aside in worlds before isn't wanted any more."""
    return struct.pack("<BI", StateRequest.LET_GO, shard)


def _aside(one: AsideKey) -> bytes:
    return _ASIDE.pack(one.shard, one.epoch, one.key, one.version)
