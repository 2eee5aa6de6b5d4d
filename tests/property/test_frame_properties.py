"""Header codec: whatever is encoded comes back; whatever comes in is a header or a CorruptError."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from byteps_like.dtypes import DType, Op
from byteps_like.errors import BytePSLikeError, CorruptError
from byteps_like.wire import door
from byteps_like.wire.crc32c_numpy import crc32c_numpy
from byteps_like.wire.frame import (
    MAX_PARTITION,
    MAX_PAYLOAD,
    MAX_TEXT,
    MOST_LISTS,
    RANGE,
    FrameFlag,
    FrameType,
    Header,
    decode_header,
    encode_header,
)
from byteps_like.wire.note import NOTE_BYTES

u32 = st.integers(0, 2**32 - 1)


@st.composite
def headers(draw) -> Header:
    kind = draw(st.sampled_from(FrameType))
    segment = kind in (FrameType.PUSH, FrameType.RESULT, FrameType.VALUE, FrameType.ROWS)
    flags = draw(st.sampled_from([0, 1, 2, 3, 4, 6, 8, 10])) if segment else 0
    if kind in (FrameType.VALUE, FrameType.ROWS):
        flags = 0
    if kind is FrameType.CLOCK:
        return Header(kind, flags=FrameFlag.NOTED, length=NOTE_BYTES, key=draw(u32), round=draw(u32), aux=draw(u32))
    total = draw(st.integers(0, MAX_PARTITION))
    offset = draw(st.integers(0, total)) if not flags & 8 else 0
    carries = (segment and not flags & 9) or kind in (FrameType.ERROR, FrameType.WARNING)
    return Header(
        kind, draw(st.sampled_from(DType)), draw(st.sampled_from(Op)), flags, draw(u32), draw(u32),
        draw(st.integers(0, 2**64 - 1)), draw(u32), draw(st.integers(-(2**31), 2**31 - 1)), offset,
        draw(st.integers(0, min(total - offset, MAX_PAYLOAD if segment else MAX_TEXT))) if carries else 0,
        total, draw(u32), draw(u32), draw(u32),
    )  # fmt: skip


@st.composite
def listed(draw) -> Header:
    """Of a list of ids."""
    header = draw(headers())
    if header.type not in (FrameType.KEYS, FrameType.ROWS, FrameType.FETCH):
        return header
    header = replace(header, aux=draw(st.integers(0, MOST_LISTS - 1)))
    if header.type is FrameType.KEYS:
        return replace(header, offset=header.offset // 8 * 8, total=header.total // 8 * 8)
    if header.type is FrameType.FETCH:
        of_range = draw(st.booleans())
        return replace(header, aux=RANGE if of_range else header.aux, length=16 if of_range else 8 * draw(u32) % 2**20)
    return header


@given(listed())
def test_round_trip(header):
    assert decode_header(encode_header(header)) == header


@given(st.binary(max_size=80))
def test_junk_is_refused(data):
    try:
        decode_header(data)
    except CorruptError:
        return
    raise AssertionError(f"accepted {data!r}")


@given(st.lists(st.binary(max_size=100), max_size=4), st.binary(max_size=100))
def test_door_parsers_are_total(parts, body):
    for parse, argument in (
        (door.decode_envelope, parts),
        (door.decode_hello, body),
        (door.decode_welcome, body),
    ):
        try:
            parse(argument)  # type: ignore[operator]
        except CorruptError:
            continue


@given(st.text(max_size=16), st.binary(min_size=16, max_size=16), u32, u32, u32, u32)
def test_hello_round_trip(job, incarnation, view, member, server, world_size):
    hello = door.Hello(job.rstrip("\0"), incarnation, view, member, server, world_size)
    assert door.decode_hello(hello.encode()) == hello


@given(st.text(max_size=2000))
def test_refusals_keep_their_type(text):
    error = door.decode_refusal(door.encode_refusal(CorruptError(text)))
    assert type(error) is CorruptError
    assert isinstance(error, BytePSLikeError)


@given(st.binary(max_size=600), st.integers(0, 600))
@settings(max_examples=50)
def test_checksum_can_be_continued_anywhere(data, split):
    assert crc32c_numpy(data[split:], crc32c_numpy(data[:split])) == crc32c_numpy(data)
