"""What a CALL carries: the bytes that the native codec reads (tests/native/call_test.cc), and what is refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps_like.errors import CorruptError, InvalidArgumentError
from byteps_like.wire.call import MAX_CALL, ServerCall, decode_figures, encode_call

AXPY = b"\x02\x01\x04axpy\x07\0\0\0\0\0\x01\0\x01a\0\0\0\0\0\0\xe0\xbf"


def test_the_native_codec_reads_these_bytes():
    assert encode_call(ServerCall("axpy", [7, 65536], {"a": -0.5})) == AXPY


def test_the_native_codec_reads_these_bytes_of_a_range():
    written = b"\x01\0\x05scale\x07\0\0\0\x03\0\0\0\0\0\0\0\x02\x01\0\0\0\0\0\0\x05\0\0\0\0\0\0\0"
    assert encode_call(ServerCall("scale", [7], rows=(3, 258), since=5)) == written


@pytest.mark.parametrize(
    "call",
    [
        ServerCall("dot", [1] * 300),
        ServerCall("x" * 65, [1]),
        ServerCall("", [1]),
        ServerCall("f", [1], {"": 1.0}),
        ServerCall("f", [1], {f"{name:030}": 1.0 for name in range(30)}),
    ],
)
def test_what_is_too_long_or_has_no_name_is_refused(call):
    with pytest.raises(InvalidArgumentError, match=rf"no name|at most {MAX_CALL}"):
        encode_call(call)


@given(st.dictionaries(st.text("abc.é", min_size=1, max_size=20), st.floats(allow_nan=False), max_size=20))
def test_figures_are_read_as_they_were_written(figures):
    written = bytes([len(figures)])
    for name, value in figures.items():
        written += bytes([len(name.encode())]) + name.encode() + struct.pack("<d", value)
    assert decode_figures(written) == figures
    for wrong in (written + b"\0", written[:-1]):
        if wrong:
            with pytest.raises(CorruptError):
                decode_figures(wrong)


def test_nothing_is_no_answer():
    with pytest.raises(CorruptError):
        decode_figures(b"")
