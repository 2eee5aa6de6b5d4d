"""Payload filters of servers read what their Python twins write, and the other way round; `float` to the last bit."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from byteps_like import _core
from byteps_like.compression.codec import Draw
from byteps_like.compression.lone import NativeCodec, ReferenceCodec
from byteps_like.compression.registry import CODECS, codec_of
from byteps_like.dtypes import DType
from byteps_like.errors import CorruptError, InvalidArgumentError
from byteps_like.store.filters.factors import Factors
from byteps_like.store.filters.filter import PayloadFilter
from byteps_like.store.filters.payloads import Payloads
from byteps_like.store.filters.registry import filter_of, table_filter

FLOATS = [np.float32, np.float64]
OWN = ["test.half"], ["test.half:shift=3", "zlib:6"]
CODED = [[kind.name] for kind in CODECS] + [
    ["int4"],
    ["int:scale=shared"],
    ["qsgd:scale=shared", "zlib"],
    ["coo", "zlib"],
]
CHAINS = [
    *OWN, ["float:1"], ["float:2"], ["float:3"], ["zlib"], ["float:2", "zlib:6"], ["zlib", "zlib:9"], *CODED
]  # fmt: skip


@table_filter
@dataclass(frozen=True)
class Half(PayloadFilter):
    """One of a user's, which servers run in Python."""

    name: ClassVar[str] = "test.half"
    about: ClassVar[str] = "numbers in 2 bytes"
    takes_rows: ClassVar[bool] = True

    shift: int = 0

    def check(self, dtype: DType) -> None:
        if dtype is DType.INT64:
            raise InvalidArgumentError("no halves of integers")

    def most(self, dtype: Any, nbytes: int) -> int:
        return nbytes // dtype.itemsize * 2

    def encode(self, dtype: Any, draw: Draw, payload: Any) -> bytes:
        with np.errstate(over="ignore"):
            return np.ldexp(np.frombuffer(payload, dtype), self.shift).astype(np.float16).tobytes()

    def decode(self, dtype: Any, payload: bytes, most: int) -> bytes:
        if len(payload) % 2 or len(payload) // 2 * dtype.itemsize > most:
            raise CorruptError("a payload of halves has no whole numbers")
        return np.ldexp(np.frombuffer(payload, np.float16).astype(dtype), -self.shift).tobytes()


@table_filter
@dataclass(frozen=True)
class Faulty(PayloadFilter):
    name: ClassVar[str] = "test.faulty"
    about: ClassVar[str] = "nothing that works"

    def most(self, dtype: Any, nbytes: int) -> int:
        return nbytes

    def encode(self, dtype: Any, draw: Draw, payload: Any) -> bytes:
        return bytes(2 * len(payload))

    def decode(self, dtype: Any, payload: bytes, most: int) -> bytes:
        raise ValueError("it does not work")


class Twins:
    def __init__(self, texts: list[str], dtype: DType) -> None:
        filters = [filter_of(text) for text in texts]
        self.ours = Payloads([one for one in filters if isinstance(one, PayloadFilter)], dtype)
        self.native, self.dtype = _core.Filters(self.ours.text), dtype.value


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(CHAINS),
    st.sampled_from(FLOATS).flatmap(lambda kind: arrays(kind, st.integers(0, 200))),
    st.integers(0, 2**56),
    st.integers(0, 2**32 - 1),
)
def test_each_reads_what_the_other_writes(texts, rows, key, number):
    twins = Twins(texts, DType[rows.dtype.name.upper()])
    draw = Draw(key, number, number // 7)
    ours = twins.ours.encode(rows, draw).tobytes()
    native = twins.native.encode(twins.dtype, draw.key, draw.round, draw.rank, rows.tobytes())
    if "zlib" not in twins.ours.text:
        assert ours == native
    assert twins.native.fits(twins.dtype, rows.nbytes, len(ours))
    try:
        expected = twins.ours.decode(ours, rows.size).tobytes()
    except CorruptError:
        assert texts == ["sketch"], "which was too small"
        return
    found = [
        twins.ours.decode(native, rows.size).tobytes(),
        twins.native.decode(twins.dtype, ours, rows.nbytes),
        twins.native.decode(twins.dtype, native, rows.nbytes),
    ]
    assert found == [expected] * 3
    if texts[0].startswith("zlib"):
        assert expected == rows.tobytes()


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(CODED),
    arrays(np.float32, st.integers(1, 300), elements=st.floats(-(2.0**40), 2.0**40, width=32)),
    st.integers(0, 2**63),
)
def test_codecs_of_portable_workers_are_those_of_the_core(texts, x, number):
    """Payloads, and what they leave out."""
    codec, made = codec_of(texts[0]), []
    for one in (NativeCodec(codec), ReferenceCodec(codec)):
        plan, rest, out = one.plan(x.size), x.copy(), np.zeros_like(x)
        prelude, body = np.zeros(plan.prelude, np.uint8), np.zeros(plan.payload, np.uint8)
        length = one.encode(rest, Draw(number), prelude, body, rest)
        try:
            one.decode(body[:length], Draw(number), prelude, out)
        except CorruptError:  # a sketch that was too small
            assert codec.name == "sketch"
        made.append([one.tobytes() for one in (prelude, body[:length], rest + np.float32(0), out + np.float32(0))])
    assert made[0] == made[1]


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(FLOATS), st.integers(0, 40), st.integers(1, 9), st.integers(1, 700), st.integers(0, 99),
    st.binary(max_size=9),
)  # fmt: skip
def test_factors_are_multiplied_to_the_last_bit(kind, count, rows, columns, seed, junk):
    """K rows of M and K of N; the matrix itself where that is less; anything else is refused by both."""
    draw, factors = np.random.default_rng(seed), Factors(columns)
    left, right = draw.normal(size=(count, rows)).astype(kind), draw.normal(size=(count, columns)).astype(kind)
    ours, native = Payloads([factors], DType[left.dtype.name.upper()]), _core.Filters(factors.spec())
    code, nbytes = DType[left.dtype.name.upper()].value, rows * columns * left.itemsize
    payload = factors.product(left, right)
    assert len(payload) == 8 + left.itemsize * min(max(count, 1) * (rows + columns), rows * columns)
    assert native.fits(code, nbytes, len(payload))
    found = ours.decode(payload, rows * columns)
    assert found.tobytes() == native.decode(code, payload, nbytes)
    wanted = left.astype(np.float64).T @ right.astype(np.float64)
    assert np.abs(found.reshape(rows, columns) - wanted).max() <= 1e-5 * max(1, np.abs(wanted).max())
    dense = ours.encode(found, Draw()).tobytes()
    assert dense == native.encode(code, 0, 0, 0, found.tobytes())
    assert ours.decode(dense, rows * columns).tobytes() == found.tobytes() == native.decode(code, dense, nbytes)
    for wrong in (payload[:-1], payload + bytes(8), junk, b"\xff" * 7 + payload[7:], b""):
        if wrong != payload:
            with pytest.raises(CorruptError, match="a payload of factors has"):
                ours.decode(wrong, rows * columns)
            with pytest.raises(CorruptError, match="a payload of factors has"):
                native.decode(code, wrong, nbytes)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(CHAINS), st.binary(max_size=100), st.integers(1, 60), st.booleans())
def test_both_refuse_what_is_no_payload(texts, junk, count, wrapped):
    twins = Twins(texts, DType.FLOAT32)
    payload = zlib.compress(junk) if wrapped else junk
    answers: list[bytes | None] = []
    for decode in (
        lambda: twins.ours.decode(payload, count).tobytes(),
        lambda: twins.native.decode(twins.dtype, payload, 4 * count),
    ):
        try:
            answers.append(decode())
        except CorruptError as error:
            assert "payload" in str(error) or texts[0] in str(error)
            answers.append(None)
    assert answers[0] == answers[1]


def test_a_filter_of_a_user_that_goes_wrong_is_named(caplog):
    native = Twins(["test.faulty"], DType.FLOAT32).native
    with pytest.raises(CorruptError, match=r"payload of filter test\.faulty: it makes 16 bytes, where there may be 8"):
        native.encode(0, 0, 0, 0, bytes(8))
    with pytest.raises(InvalidArgumentError, match=r"'test\.faulty' raised ValueError: it does not work"):
        native.decode(0, bytes(8), 8)
    assert "it does not work" in caplog.text
    with pytest.raises(InvalidArgumentError, match="no halves of integers"):
        _core.Filters("test.half:shift=0").check(DType.INT64.value)
    for texts, words in (
        ("test.half:other=1", "other"),
        ("zlib:level=1 test.half:shift=0", "takes rows: let it be the first"),
        ("test.nothing", "has no filter test.nothing; it has factors, float, zlib, all codecs, and others if"),
        ("significant:delta=1.0", "of rows: servers have nothing to do with it"),
    ):
        with pytest.raises(InvalidArgumentError, match=words):
            _core.Filters(texts)


def test_a_bomb_is_not_blown_up():
    with pytest.raises(CorruptError, match="too many bytes"):
        Twins(["zlib"], DType.FLOAT32).native.decode(0, zlib.compress(bytes(40_000_000), 9), 40_000)


def test_what_a_payload_may_have():
    """So many bytes are taken before it is known what they are."""
    native = _core.Filters("float:bytes=1 zlib:level=1")
    assert native.fits(0, 4000, 1008 + 13) and not native.fits(0, 4000, 1008 + 14) and native.fits(0, 4000, 1)
    assert native.fits(0, 0, 0) and not native.fits(0, 0, 1)
    assert _core.Filters("").fits(0, 8, 8) and not _core.Filters("").fits(0, 8, 7)


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ("zlib:level=1 float:bytes=3", "let it be the first"),
        ("float:bytes=4", "bytes"),
        ("float", "bytes"),
        ("gzip:level=1", "this server has no filter gzip"),
        ("zlib:level=0", "level"),
        ("zlib:level=1  zlib:level=1", "filter"),
    ],
)
def test_what_cannot_be_is_refused(texts, words):
    with pytest.raises(InvalidArgumentError, match=words):
        _core.Filters(texts)


def test_integers_are_not_rounded():
    with pytest.raises(InvalidArgumentError, match="float32 and float64"):
        _core.Filters("float:bytes=3").check(DType.INT64.value)
