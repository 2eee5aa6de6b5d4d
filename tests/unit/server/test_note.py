"""The note before a contribution to a store key: the bytes of the native one, and what is refused."""

from __future__ import annotations

import math
import struct
from dataclasses import astuple, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps_like.errors import CorruptError
from byteps_like.wire.note import NOTE_BYTES, Note, decode_note, decode_ranks, encode_note, encode_ranks

NOTE = Note(7, 2.5, 0.125, math.nan, 0.25, 3, 2, 3)

u32 = st.integers(0, 2**32 - 1)
above_0 = st.floats(width=32, min_value=0, exclude_min=True, allow_infinity=False)
from_0 = st.floats(width=32, min_value=0, allow_infinity=False)


def test_the_bytes_are_those_of_the_native_note():
    assert encode_note(NOTE).hex() == "07000000000020400000003e0000c07f0000803e030000000200000003000000"


@given(st.builds(Note, u32, above_0, from_0, st.floats(width=32, allow_nan=False), from_0, u32, u32, st.integers(0, 7)))
def test_what_is_encoded_comes_back(note):
    assert astuple(decode_note(encode_note(note) + b"payload")) == astuple(note)


def test_sets_of_ranks_are_bits():
    assert encode_ranks([9, 0, 2]).hex() == "0502" and encode_ranks([]) == b""


@given(st.sets(st.integers(0, 200)))
def test_sets_of_ranks_come_back(ranks):
    assert decode_ranks(encode_ranks(ranks) + bytes(3)) == tuple(sorted(ranks))


def test_without_a_rate_and_a_loss():
    note = decode_note(encode_note(Note()))
    assert math.isnan(note.lr)
    assert math.isnan(note.loss)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("weight", [0.0, -1.0, math.inf, math.nan]),
        ("lr", [-1.0, math.inf]),
        ("time", [-1.0, math.inf, math.nan]),
        ("bits", [8, 2**31]),
    ],
)
def test_refusals_name_the_field(field, values):
    for value in values:
        with pytest.raises(CorruptError, match=field):
            decode_note(encode_note(replace(NOTE, **{field: value})))


def test_too_short():
    with pytest.raises(CorruptError, match="31"):
        decode_note(bytes(NOTE_BYTES - 1))


def test_a_field_out_of_its_range_is_the_callers_mistake():
    with pytest.raises((struct.error, OverflowError)):
        encode_note(Note(base=2**32))
