"""What CUT and STATE carry: words of ranks and heads of keys come back as they were, and what is cut off is refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps_like.errors import CorruptError
from byteps_like.wire.saving import (
    MAX_WORD,
    decode_heads,
    decode_read,
    decode_rows,
    decode_words,
    encode_cut,
    saved_row_bytes,
)


@given(st.lists(st.none() | st.binary(max_size=40), max_size=9))
def test_words_come_back(words):
    """As a server lists them."""
    sent = b"".join(
        struct.pack("<I", 0xFFFFFFFF) if one is None else struct.pack("<I", len(one)) + one for one in words
    )
    assert decode_words(sent) == words
    for end in range(len(sent)):
        try:
            assert decode_words(sent[:end]) == words[: len(decode_words(sent[:end]))]
        except CorruptError:
            continue


def test_a_word_is_cut_where_it_is_too_long():
    assert encode_cut([1, 2], b"a" * 2000) == struct.pack("<IQQ", 2, 1, 2) + b"a" * MAX_WORD


@given(st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 2**40), st.integers(0, 9)), max_size=5))
def test_heads_come_back(drawn):
    sent = b"".join(struct.pack("<QQIIqq", *one, 2, one[0], 7) for one in drawn)
    found = decode_heads(sent)
    assert [(one.version, one.state_bytes, one.waiting) for one in found] == drawn
    assert all(one.clocks == (one.version, 7) for one in found)
    if sent:
        with pytest.raises(CorruptError):
            decode_heads(sent[:-1])


@pytest.mark.parametrize(("decode", "length"), [(decode_read, 7), (decode_rows, 15)])
def test_what_has_no_version_is_refused(decode, length):
    with pytest.raises(CorruptError, match="version"):
        decode(bytes(length))


def test_rows_are_filled_up_to_whole_words():
    assert [saved_row_bytes(nbytes) for nbytes in (4, 8, 12, 16)] == [24, 24, 32, 32]
