"""Payload filters: rows go through them and back; rounding has no bias; what is no payload is refused."""

from __future__ import annotations

import math
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from byteps_like.compression.codec import Draw
from byteps_like.dtypes import DType
from byteps_like.errors import CorruptError, InvalidArgumentError
from byteps_like.store.filters.filter import PayloadFilter
from byteps_like.store.filters.filtering import Filtering
from byteps_like.store.filters.payloads import Payloads
from byteps_like.store.filters.registry import filter_of
from byteps_like.store.filters.significant import Significant
from byteps_like.store.updates.plain import Add

FLOATS = {DType.FLOAT32: np.float32, DType.FLOAT64: np.float64}
CHAINS = [["zlib"], ["float:1"], ["float:2", "zlib"], ["float"], ["zlib:9", "zlib"]]


def payloads(texts: list[str], dtype: DType) -> Payloads:
    filters = [filter_of(text) for text in texts]
    return Payloads([one for one in filters if isinstance(one, PayloadFilter)], dtype)


def drawn(seed: int, count: int, dtype: DType) -> np.ndarray:
    draw = np.random.default_rng(seed)
    if dtype is DType.INT64:
        return draw.integers(-1000, 1000, count)
    return (draw.normal(size=count) * 10.0 ** draw.integers(-3, 3)).astype(FLOATS[dtype])


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(["zlib", "zlib:9"]), st.sampled_from([*FLOATS, DType.INT64]), st.integers(0, 500))
def test_zlib_gives_the_same_bits(text, dtype, count):
    rows, chain = drawn(count, count, dtype), payloads([text, "zlib"], dtype)
    payload = chain.encode(rows, Draw()).tobytes()
    assert chain.decode(payload, count).tobytes() == rows.tobytes()
    assert bool(payload) == bool(count), "no rows are no bytes"


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_number_takes_so_many_bytes_and_is_off_by_less_than_a_step(size, dtype):
    rows, chain = drawn(size, 3000, dtype), payloads([f"float:bytes={size}"], dtype)
    payload = chain.encode(rows, Draw(1, 2, 3))
    assert payload.nbytes == 3000 * size + 2 * rows.itemsize
    found = chain.decode(payload.tobytes(), 3000)
    step = (float(rows.max()) - float(rows.min())) / (2 ** (8 * size) - 2)
    ulp = np.spacing(np.abs(rows).max())
    assert np.abs(found.astype(np.float64) - rows).max() <= step + ulp
    assert (found.min(), found.max()) == (rows.min(), rows.max()), "which come through as they are"


@pytest.mark.parametrize("size", [1, 2, 3])
def test_rounding_has_no_bias(size):
    """A million draws of one payload: the mean error of all, and of single numbers, is within 3 sigma of 0."""
    count, draws = 1000, 1000
    rows, chain = drawn(7, count, DType.FLOAT64), payloads([f"float:{size}"], DType.FLOAT64)
    errors = np.zeros((draws, count))
    for number in range(draws):
        payload = chain.encode(rows, Draw(5, number, 1)).tobytes()
        errors[number] = chain.decode(payload, count) - rows
    step = (rows.max() - rows.min()) / (2 ** (8 * size) - 2)
    share = (rows - rows.min()) / step % 1
    sigma = step * np.sqrt(share * (1 - share))
    assert abs(errors.sum()) < 3 * math.sqrt(draws * (sigma**2).sum()), "the mean of all"
    each = np.abs(errors.mean(0)) / (sigma / math.sqrt(draws) + 1e-12 * step)
    assert (each > 3).mean() < 0.01, "3 in 1,000 are expected"
    assert errors.std() > 0.5 * sigma.mean(), "it is by chance"


@pytest.mark.parametrize("size", [1, 3])
def test_draws_differ_by_key_round_and_rank(size):
    rows, chain = drawn(1, 200, DType.FLOAT32), payloads([f"float:{size}"], DType.FLOAT32)
    draws = [Draw(1, 1, 1), Draw(2, 1, 1), Draw(1, 2, 1), Draw(1, 1, 2)]
    assert len({chain.encode(rows, draw).tobytes() for draw in draws}) == 4
    assert chain.encode(rows, draws[0]).tobytes() == chain.encode(rows, draws[0]).tobytes()


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(list(FLOATS)).flatmap(lambda one: arrays(FLOATS[one], st.integers(1, 40))),
    st.integers(1, 3),
)
def test_whatever_floats_come_out_between_the_least_and_the_greatest(rows, size):
    dtype = DType[rows.dtype.name.upper()]
    chain = payloads([f"float:{size}"], dtype)
    found = chain.decode(chain.encode(rows, Draw()).tobytes(), len(rows))
    finite = np.isfinite(rows)
    assert np.array_equal(np.isnan(found), ~finite), "what is not finite is NaN"
    if finite.any():
        assert (found[finite] >= rows[finite].min()).all() and (found[finite] <= rows[finite].max()).all()


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(CHAINS), st.binary(max_size=80), st.integers(0, 9), st.integers(0, 3))
def test_what_is_no_payload_is_corrupt(texts, junk, count, damage):
    chain = payloads(texts, DType.FLOAT32)
    good = chain.encode(drawn(1, count, DType.FLOAT32), Draw()).tobytes()
    for payload in (junk, good[:damage], good + junk, good[:damage] + junk + good[damage:]):
        try:
            assert len(chain.decode(payload, count)) == count
        except CorruptError as error:
            assert "payload" in str(error)


def test_a_bomb_is_not_blown_up():
    """A payload that stands for a thousand times as many bytes as its rows have ends early."""
    chain = payloads(["zlib"], DType.FLOAT32)
    with pytest.raises(CorruptError, match="too many bytes"):
        chain.decode(zlib.compress(bytes(40_000_000), 9), 10_000)
    assert len(chain.decode(zlib.compress(bytes(40_000)), 10_000)) == 10_000


def test_texts_mean_filters():
    assert filter_of("float") == filter_of("float:bytes=3") == filter_of("float:3")
    found = filter_of("significant:0.1")
    assert isinstance(found, Significant) and found.delta == 0.1
    chain = Filtering(["significant:delta=1", "float:2", "zlib"], "", 2, DType.FLOAT32, Add())
    assert chain.text == "float:bytes=2 zlib:level=1" and chain.of_rows
    assert Filtering([], "", 2, DType.FLOAT32, Add()).text == ""


@pytest.mark.parametrize(
    ("filters", "words"),
    [
        (["flaot"], "there is no filter 'flaot'; there are: significant"),
        (["float:size=3"], "'size' in 'float:size=3' is not a parameter of float, which has bytes"),
        (["float:4"], "1, 2 or 3 bytes"),
        (["float:many"], "filter 'float:many'"),
        (["zlib:level=10"], "from 1 to 9"),
        (["significant"], "lacks delta, as in significant:delta=1"),
        (["zlib", "float"], "swap them"),
        (["float", "significant:1"], "must come before all others"),
        (["zlib:level"], "filter"),
        ("zlib", "one text: give a list"),
        ([7], "neither a filter nor the text of one"),
    ],
)
def test_what_cannot_be_is_refused(filters, words):
    with pytest.raises(InvalidArgumentError, match=words):
        Filtering(filters, "", 1, DType.FLOAT32, Add())


def test_integers_are_not_rounded():
    with pytest.raises(InvalidArgumentError, match="float32 and float64, not int64"):
        Filtering(["float"], "", 1, DType.INT64, Add())
