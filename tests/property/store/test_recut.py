"""What was saved in some pieces is the same in any other: values, and states with as much for each element or row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps_like.errors import CorruptError, MismatchError
from byteps_like.store.saving.recut import overlapping, state_copies, value_copy

SIZE = 4


@dataclass(frozen=True)
class Range:
    offset: int
    nbytes: int
    state_bytes: int


def cuts(rows: int) -> st.SearchStrategy[list[int]]:
    """Ends of ranges of rows."""
    return st.sets(st.integers(1, rows), max_size=rows).map(lambda some: sorted({*some, rows}))


@st.composite
def tables(draw: st.DrawFn) -> tuple[int, int, list[int], list[int]]:
    rows = draw(st.integers(1, 12))
    return rows, draw(st.integers(1, 5)), draw(cuts(rows)), draw(cuts(rows))


def ranges(ends: list[int], width: int, arrays: int, by_row: bool) -> list[Range]:
    found = []
    for begin, end in zip([0, *ends], ends, strict=False):
        states = end - begin if by_row else arrays * (end - begin) * width
        found.append(Range(begin * width * SIZE, (end - begin) * width * SIZE, states * SIZE))
    return found


def contents(one: Range, value: np.ndarray, state: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Of a range: its elements, and of each array of the state what belongs to them."""
    begin, end = one.offset // SIZE, (one.offset + one.nbytes) // SIZE
    if state.shape[-1] != len(value):  # one for each row
        return value[begin:end], state[:, begin // width : end // width].ravel()
    return value[begin:end], state[:, begin:end].ravel()


@given(tables(), st.integers(0, 3), st.booleans())
def test_any_cut_becomes_any_other(drawn, arrays, by_row):
    rows, width, before, after = drawn
    value = np.arange(rows * width, dtype=np.float32)
    each = 1 if by_row else arrays
    length = rows if by_row else rows * width
    state = 1000 + np.arange(each * length, dtype=np.float32).reshape(each, length)
    pieces = ranges(before, width, each, by_row)
    for one in ranges(after, width, each, by_row):
        wanted, wanted_state = contents(one, value, state, width)
        got, got_state = np.zeros_like(wanted), np.zeros_like(wanted_state)
        for number in overlapping(pieces, one.offset, one.nbytes, "w"):
            source, source_state = (part.tobytes() for part in contents(pieces[number], value, state, width))
            copy = value_copy(pieces[number], one.offset, one.nbytes)
            got.view(np.uint8)[copy.target : copy.target + copy.nbytes] = np.frombuffer(
                source[copy.source : copy.source + copy.nbytes], np.uint8
            )
            for copy in state_copies(pieces[number], one.offset, one.nbytes, one.state_bytes, "w"):
                got_state.view(np.uint8)[copy.target : copy.target + copy.nbytes] = np.frombuffer(
                    source_state[copy.source : copy.source + copy.nbytes], np.uint8
                )
        assert np.array_equal(got, wanted)
        assert np.array_equal(got_state, wanted_state)


def test_what_nobody_has_saved_is_named():
    pieces = [Range(0, 8, 0), Range(16, 8, 0)]
    assert overlapping(pieces, 0, 8, "w") == [0]
    for offset, nbytes, byte in [(0, 12, 8), (8, 8, 8), (16, 12, 24)]:
        with pytest.raises(CorruptError, match=f"byte {byte} of 'w'"):
            overlapping(pieces, offset, nbytes, "w")


def test_a_state_of_another_form_goes_only_where_it_was():
    piece = Range(0, 16, 12)
    assert [copy.nbytes for copy in state_copies(piece, 0, 16, 12, "w")] == [12]
    for offset, nbytes, state in [(0, 8, 8), (0, 8, 6), (0, 32, 24), (0, 16, 8)]:
        with pytest.raises(MismatchError, match="can't be cut"):
            state_copies(piece, offset, nbytes, state, "w")
    with pytest.raises(MismatchError, match="can't be cut"):
        state_copies(Range(0, 16, 16), 0, 8, 8, "w", has_form=False)
