"""fixed: the same bits in any order, by any tree and any cut, within its bound, and never an overflow."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

import byteps_like._core as _core
from byteps_like.compression.codec import Draw, Floats
from byteps_like.compression.quantised.fixed import Fixed
from byteps_like.compression.registry import codec_of
from byteps_like.dtypes import DType, Op
from byteps_like.errors import InvalidArgumentError
from tests.fakes.codec_rounds import Native, natively, nmse

Integers = NDArray[np.int32] | NDArray[np.int16]
each_width = pytest.mark.parametrize("text", ["fixed32", "fixed16"])


def drawn(kind: str, ranks: int, numel: int) -> list[Floats]:
    """Independent gradients: normal, or log-normal with random signs."""
    random = np.random.default_rng(3)
    xs = [random.standard_normal(numel, dtype=np.float32) for _ in range(ranks)]
    return (
        xs
        if kind == "gauss"
        else [np.copysign(np.exp(x), random.standard_normal(numel)).astype(np.float32) for x in xs]
    )


def add(a: Integers, b: Integers) -> Integers:
    """As servers and collectives do."""
    total = a.copy()
    _core.kernels.reduce(int(Op.SUM), int(DType.INT32 if a.dtype == np.int32 else DType.INT16), total, b)
    return total


def in_turn(parts: Sequence[Integers]) -> Integers:
    """((a + b) + c) + d."""
    total = parts[0]
    for part in parts[1:]:
        total = add(total, part)
    return total


def by_halves(parts: Sequence[Integers]) -> Integers:
    """(a + b) + (c + d)."""
    half = len(parts) // 2
    return parts[0] if half == 0 else add(by_halves(parts[:half]), by_halves(parts[half:]))


def by_hosts(parts: Sequence[Integers]) -> Integers:
    """Sums of three each, then of these."""
    return in_turn([in_turn(parts[first : first + 3]) for first in range(0, len(parts), 3)])


def cut(parts: Sequence[Integers], shards: int, tree: Callable[[Sequence[Integers]], Integers]) -> Integers:
    """Each of `shards` sums its share."""
    pieces = [np.array_split(part, shards) for part in parts]
    return np.concatenate([tree([piece[shard] for piece in pieces]) for shard in range(shards)])


@each_width
def test_any_order_tree_and_cut_give_the_same_bytes(text: str) -> None:
    codec, xs = codec_of(text), drawn("lognormal", 8, 5000)
    done, native = natively(codec, xs), Native(codec, 8)
    width = np.dtype(np.int32 if text == "fixed32" else np.int16)
    parts = [np.frombuffer(payload, width) for payload in done.payloads]
    for order in range(20):
        shuffled = [parts[i] for i in np.random.default_rng(order).permutation(8)]
        for tree in (in_turn, by_halves, by_hosts):
            for shards in (1, 7):
                assert cut(shuffled, shards, tree).tobytes() == done.result
    assert native.decode(done.result, Draw(), done.agreed, 5000).tobytes() == done.out.tobytes()


@each_width
@pytest.mark.parametrize("kind", ["gauss", "lognormal"])
def test_errors_are_bounded_and_those_of_the_table(text: str, kind: str) -> None:
    codec, xs = codec_of(text), drawn(kind, 8, 1 << 16)
    done = natively(codec, xs)
    assert isinstance(codec, Fixed)
    scale = np.repeat(np.exp2(codec.magnitude(8) - (done.agreed.astype(float) + 1)), 256)
    exact = np.sum([x.astype(np.float64) for x in xs], axis=0)
    rounding = np.abs(exact) * 2.0**-24  # of the result to fp32
    assert np.all(np.abs(done.out - exact) <= 8 * 0.5 / scale + rounding)
    if text == "fixed16":
        # A scale that is a power of two is up to 2 times coarser than the table's.
        wanted = {"gauss": 1.05e-7, "lognormal": 2.0e-6}[kind]
        assert wanted / 2 < nmse(xs, done.out) < 5 * wanted
    else:
        plain = xs[0].copy()
        for x in xs[1:]:
            plain += x
        assert nmse(xs, done.out) < nmse(xs, plain)


@each_width
@pytest.mark.parametrize("world", [1, 2, 3, 7, 8, 100, 127, 128])
def test_the_largest_numbers_do_not_overflow(text: str, world: int) -> None:
    most = np.float32(1 - 2.0**-24)
    for exponent in (-100, -1, 0, 1, 31, 126):
        x = np.full(300, np.ldexp(most, exponent), np.float32)
        x[::2] *= -1
        native, agreed = Native(codec_of(text), world), np.full(2, exponent - 1, np.int8)
        payload, _ = native.encode(x, Draw(), agreed)
        integers = np.frombuffer(payload, np.int32 if text == "fixed32" else np.int16).astype(np.int64)
        assert np.abs(world * integers).max() <= np.iinfo(np.int32 if text == "fixed32" else np.int16).max
        out = native.decode(native.sum([payload] * world, 300, Draw()), Draw(), agreed, 300, 1 / world)
        np.testing.assert_allclose(out, x, rtol=2.0 ** -(6 if text == "fixed16" else 22))


def test_the_scale_is_the_largest_that_fits() -> None:
    for bits in (16, 32):
        for world in (1, 2, 3, 5, 8, 100, 128, 1000):
            k = Fixed(bits=bits).magnitude(world)
            assert world * 2**k <= 2 ** (bits - 1) - 1 - world / 2 < world * 2 ** (k + 1)


@each_width
def test_blocks_that_are_not_finite_come_out_as_nan_and_others_do_not(text: str) -> None:
    for bad in (np.nan, np.inf, -np.inf, np.float32(2.0**127)):
        xs = drawn("gauss", 3, 1000)
        xs[1][300] = bad
        done = natively(codec_of(text), xs)
        assert np.isnan(done.out[256:512]).all()
        rest = np.delete(np.arange(1000), np.s_[256:512])
        assert nmse([x[rest] for x in xs], done.out[rest]) < 1e-6


@each_width
def test_zero_blocks_denormals_and_the_smallest_numbers(text: str) -> None:
    codec = codec_of(text)
    zeros = natively(codec, [np.zeros(600, np.float32)] * 2)
    assert zeros.agreed.tolist() == [-127] * 3 and not zeros.out.any()
    assert not natively(codec, [np.full(600, 1e-41, np.float32)] * 2).out.any()
    least = np.full(600, np.finfo(np.float32).tiny, np.float32)
    done = natively(codec, [least, 3 * least])
    np.testing.assert_allclose(done.out, 4 * least, atol=2 * 2.0**-126 if text == "fixed16" else 2.0**-126)


def test_a_world_too_large_for_16_bits_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="60000 ranks don't fit"):
        _core.Codec(codec_of("fixed16").spec(), 60000)
    with pytest.raises(InvalidArgumentError, match="60000 ranks don't fit"):
        codec_of("fixed16").plan(10, 60000)
