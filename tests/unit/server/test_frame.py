"""The Python frame codec against golden bytes, and what it refuses."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from byteps_like.dtypes import DType, Op
from byteps_like.errors import CorruptError
from byteps_like.wire.crc32c import crc32c
from byteps_like.wire.frame import (
    FrameFlag,
    FrameType,
    Header,
    check_payload,
    decode_header,
    encode_header,
    seal,
)

PUSH = Header(
    FrameType.PUSH, DType.BFLOAT16, Op.AVERAGE, 0, view=7, member=3, key=0x0001_0002_0003_0004, round=9, priority=-5,
    offset=0x40000, length=9, total=0x400000, payload_crc=0xE3069283, aux=0, root=2,
)  # fmt: skip
PUSH_BYTES = (
    "42504c32" "01030100" "07000000" "03000000" "0400030002000100" "09000000" "fbffffff" "0000040000000000"
    "09000000" "00004000" "839206e3" "00000000" "02000000"
)  # fmt: skip


def test_golden_bytes():
    body = bytes.fromhex(PUSH_BYTES)
    golden = body + struct.pack("<I", crc32c(body))
    assert encode_header(PUSH) == golden
    assert decode_header(golden) == PUSH


def reseal(data: bytearray) -> bytes:
    data[60:] = struct.pack("<I", crc32c(bytes(data[:60])))
    return bytes(data)


@pytest.mark.parametrize(
    ("at", "value", "names"),
    [
        (0, 0x00, "magic"),
        (4, 0, "FrameType"),
        (4, 0x60, "FrameType"),
        (5, 0x60, "DType"),
        (6, 0x60, "Op"),
        (7, 0x80, "flags"),
        (7, 0x08, "absent"),
        (7, 0x09, "flags"),
        (7, 0x0C, "flags"),
        (7, 0x10, "note"),
        (7, 0x14, "flags"),
        (7, 0x21, "flags"),
        (35, 0x40, "offset"),
        (43, 0x02, "length"),
        (47, 0x80, "total"),
    ],
)
def test_refusals_name_the_field(at, value, names):
    data = bytearray(encode_header(PUSH))
    data[at] = value
    with pytest.raises(CorruptError, match=names):
        decode_header(reseal(data))


@pytest.mark.parametrize("bit", range(0, 64 * 8, 7))
def test_any_flipped_bit_is_detected(bit):
    data = bytearray(encode_header(PUSH))
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptError):
        decode_header(data)


def test_wrong_size():
    with pytest.raises(CorruptError, match="63 bytes"):
        decode_header(encode_header(PUSH)[:63])


def test_bounds_are_those_of_partitions_only():
    error = Header(FrameType.ERROR, length=100)
    assert decode_header(encode_header(error)) == error
    by_reference = replace(PUSH, flags=FrameFlag.BY_REFERENCE, offset=1 << 40, length=0)
    assert decode_header(encode_header(by_reference)) == by_reference


def test_a_note_is_not_counted_in_the_total():
    noted = replace(PUSH, flags=FrameFlag.NOTED, offset=0, length=41, total=9)
    assert decode_header(encode_header(noted)) == noted
    with pytest.raises(CorruptError, match="total"):
        decode_header(encode_header(replace(noted, total=8)))
    with pytest.raises(CorruptError, match="note"):
        decode_header(encode_header(replace(noted, length=31)))


@pytest.mark.parametrize(
    ("header", "names"),
    [
        (Header(FrameType.KEYS, aux=1024), "aux"),
        (Header(FrameType.KEYS, length=12, total=16), "length"),
        (Header(FrameType.KEYS, total=12), "total"),
        (Header(FrameType.KEYS, offset=8), "total"),
        (Header(FrameType.KEYS, offset=4, total=8), "offset"),
        (Header(FrameType.ROWS, aux=1024), "aux"),
        (Header(FrameType.ROWS, length=4), "total"),
        (Header(FrameType.ROWS, flags=FrameFlag.BY_REFERENCE, total=4), "flags"),
        (Header(FrameType.ROWS, flags=FrameFlag.MOVABLE, total=4), "flags"),
        (Header(FrameType.ROWS, flags=FrameFlag.NOTED, length=31, total=4), "note"),
        (Header(FrameType.FETCH, aux=1024), "aux"),
        (Header(FrameType.FETCH, aux=0xFFFFFFFF, length=8), "range"),
        (Header(FrameType.FETCH, length=4), "length"),
        (Header(FrameType.FETCH, flags=FrameFlag.NOTED, length=40), "flags"),
        (Header(FrameType.NACK, length=8, total=8), "length"),
        (Header(FrameType.CUT, length=(1 << 20) + 1), "length"),
        (Header(FrameType.STATE, length=(1 << 20) + 1), "length"),
        (Header(FrameType.STATE, flags=FrameFlag.NOTED, length=40), "flags"),
        (Header(FrameType.CLOCK), "note"),
        (Header(FrameType.CLOCK, flags=FrameFlag.SILENT, length=32), "note"),
        (Header(FrameType.CLOCK, flags=FrameFlag.NOTED, length=31), "note"),
        (Header(FrameType.CLOCK, flags=FrameFlag.NOTED, length=32, total=4), "total"),
        (Header(FrameType.CLOCK, flags=FrameFlag.NOTED, length=33), "total"),
        (Header(FrameType.CLOCK, flags=FrameFlag.NOTED | FrameFlag.MOVABLE, length=32), "flags"),
    ],
)
def test_frames_of_tables_are_bounded(header, names):
    with pytest.raises(CorruptError, match=names):
        decode_header(encode_header(header))


def test_payload_checks():
    header = decode_header(seal(PUSH, b"123456789"))
    check_payload(header, b"123456789")
    with pytest.raises(CorruptError, match="checksum"):
        check_payload(header, b"123456780")
    with pytest.raises(CorruptError, match="8 bytes and announces 9"):
        check_payload(header, b"12345678")


GOLDEN = Path(__file__).parents[2] / "golden" / "frames.json"


@pytest.mark.skipif(not GOLDEN.exists(), reason="no golden file of the native codec")
def test_the_native_codec_writes_the_same_bytes():
    vectors = json.loads(GOLDEN.read_text())
    assert vectors
    for vector in vectors:
        data = bytes.fromhex(vector["hex"])
        assert encode_header(decode_header(data)) == data
