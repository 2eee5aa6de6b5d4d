"""The native kernels against NumPy: every length and misalignment, special values, each instruction set there is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels_reference import (
    FLOAT8,
    FLOATS,
    NARROW,
    REDUCTIONS,
    STORED,
    Array,
    apply,
    canonical,
    divide,
    narrow,
    parts,
    reduce_many,
    samples,
    scale,
    widen,
)

from byteps_like.dtypes import DType, Op

kernels = pytest.importorskip("byteps_like._core").kernels

BEST = kernels.instruction_set()
SETS = [name for name in ("avx512", "avx2", "neon", "scalar") if kernels.select_instruction_set(name)]
kernels.select_instruction_set(BEST)
SIXTEEN = (DType.FLOAT16, DType.BFLOAT16)
PECULIAR = {  # bits of infinity, of the numbers beside it and of NaNs, quiet and signalling; of both signs
    DType.FLOAT16: (0x7C00, 0xFC00, 0x7BFF, 0xFBFF, 0x7C01, 0xFC01, 0x7E00, 0xFE00, 0x7FFF, 0xFFFF),
    DType.BFLOAT16: (0x7F80, 0xFF80, 0x7F7F, 0xFF7F, 0x7F81, 0xFF81, 0x7FC0, 0xFFC0, 0x7FFF, 0xFFFF),
}
INTEGERS = tuple(dtype for dtype in DType if not (dtype.is_float or dtype.is_complex or dtype == DType.BOOL))
LENGTHS = range(258)
GUARD = 0xA5


@pytest.fixture(params=SETS, autouse=True)
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs each test once for each instruction set of this CPU."""
    assert kernels.select_instruction_set(request.param)
    yield request.param
    kernels.select_instruction_set(BEST)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


class Misaligned:
    """A copy of an array that begins `offset` bytes after a cache line, with guard bytes on both sides."""

    def __init__(self, values: Array, offset: int) -> None:
        room = np.full(values.nbytes + 256, GUARD, np.uint8)
        begin = -room.ctypes.data % 64 + 64 + offset
        self.array = room[begin : begin + values.nbytes].view(values.dtype)
        self.array[:] = values
        self._outside = (room[:begin], room[begin + values.nbytes :])

    def check(self, dtype: DType, expected: Array) -> None:
        """The values are as expected, bit by bit but for which NaN; nothing was written outside."""
        got, want = (canonical(dtype, values) for values in (self.array.copy(), expected))
        np.testing.assert_array_equal(got, want)
        assert all((side == GUARD).all() for side in self._outside)


@pytest.mark.parametrize("dtype", DType, ids=lambda dtype: dtype.name)
def test_reduce_of_every_length_and_misalignment(dtype: DType) -> None:
    a, b = (samples(dtype, LENGTHS[-1], seed) for seed in (1, 2))
    for op in filter(lambda op: op.supports(dtype), REDUCTIONS):
        expected = narrow(dtype, apply(op, dtype, widen(dtype, a), widen(dtype, b)))
        for length in LENGTHS:
            stored = length * parts(dtype)
            left, right = Misaligned(a[:stored], length % 64), Misaligned(b[:stored], length * 29 % 64)
            kernels.reduce(op, dtype, left.array, right.array)
            left.check(dtype, expected[:stored])


@pytest.mark.parametrize("dtype", NARROW, ids=lambda dtype: dtype.name)
def test_accumulate_of_every_length_and_misalignment(dtype: DType) -> None:
    total, source = samples(DType.FLOAT32, LENGTHS[-1], 3), samples(dtype, LENGTHS[-1], 4)
    for op in filter(lambda op: op.supports(dtype), Op):
        expected = apply(op, dtype, total, widen(dtype, source))
        for length in LENGTHS:
            left, right = Misaligned(total[:length], length % 64), Misaligned(source[:length], length * 29 % 64)
            kernels.accumulate(op, dtype, left.array, right.array)
            left.check(DType.FLOAT32, expected[:length])


@pytest.mark.parametrize("dtype", DType, ids=lambda dtype: dtype.name)
def test_reduce_many_of_every_length_in_place(dtype: DType) -> None:
    contributions = [samples(dtype, LENGTHS[-1], seed) for seed in range(3)]
    for workers in (1, 2, 3):
        expected = reduce_many(Op.AVERAGE, dtype, contributions[:workers], workers)
        for length in (count * parts(dtype) for count in LENGTHS):
            arrays = [Misaligned(c[:length], (length + 13 * i) % 64) for i, c in enumerate(contributions[:workers])]
            places = [a.array for a in arrays]
            kernels.reduce_many(Op.AVERAGE, dtype, places, places, workers)
            for a in arrays:
                a.check(dtype, expected[:length])


lengths = st.integers(0, 257) | st.integers(258, 20_000)
offsets = st.integers(0, 63)
seeds = st.integers(0, 2**32 - 1)
divisors = st.sampled_from([1, 2, 3, 4, 7, 8, 127, 128, 255, 256, 1000, 2**31 - 1, 2**31, 2**32 - 1])


pairs = st.sampled_from([(op, dtype) for op in Op for dtype in DType if op.supports(dtype)])


@settings(max_examples=160)
@given(pairs, lengths, st.lists(offsets, min_size=1, max_size=6), divisors, seeds)
def test_reduce_many(pair: tuple[Op, DType], length: int, places: list[int], divisor: int, seed: int) -> None:
    op, dtype = pair
    contributions = [samples(dtype, length, seed + i) for i in range(len(places))]
    sources = [Misaligned(c, offset) for c, offset in zip(contributions, places, strict=True)]
    fresh = Misaligned(contributions[0], places[-1])
    destinations = [fresh, *sources[::2]]
    divisor = divisor if op in (Op.SUM, Op.AVERAGE) else 1
    kernels.reduce_many(op, dtype, [d.array for d in destinations], [s.array for s in sources], divisor)
    expected = reduce_many(op, dtype, contributions, divisor)
    for destination in destinations:
        destination.check(dtype, expected)


@settings(max_examples=120)
@given(st.sampled_from(DType), lengths, offsets, offsets, divisors, seeds)
def test_widen_and_finalize(dtype: DType, length: int, here: int, there: int, divisor: int, seed: int) -> None:
    wide = dtype.accumulator
    source = Misaligned(samples(dtype, length, seed), here)
    accumulator = Misaligned(samples(wide, length, seed), there)
    kernels.widen(dtype, accumulator.array, source.array)
    accumulator.check(wide, widen(dtype, source.array.copy()))

    totals = samples(wide, length, seed + 1)
    accumulator.array[:] = totals
    expected = narrow(dtype, divide(dtype, totals, divisor))
    kernels.finalize(dtype, source.array, accumulator.array, divisor)
    source.check(dtype, expected)
    kernels.finalize(dtype, accumulator.array, accumulator.array, divisor)
    np.testing.assert_array_equal(
        accumulator.array.view(np.uint8)[: source.array.nbytes].tobytes(), source.array.tobytes()
    )


@settings(max_examples=120)
@given(
    st.sampled_from([d for d in DType if d != DType.BOOL]),
    lengths,
    offsets,
    st.floats(width=32) | st.sampled_from([0.0, 1.0, -0.5, 1 / 3]),
    seeds,
)
def test_scale(dtype: DType, length: int, offset: int, factor: float, seed: int) -> None:
    values = samples(dtype, length, seed)
    data = Misaligned(values, offset)
    kernels.scale(dtype, data.array, factor)
    data.check(dtype, scale(dtype, values, factor))


@pytest.mark.parametrize("dtype", NARROW, ids=lambda dtype: dtype.name)
def test_every_narrow_float_survives_the_way_up_and_down(dtype: DType) -> None:
    every = np.arange(1 << 8 * dtype.itemsize).astype(STORED[dtype])
    for wide in (DType.FLOAT32, DType.FLOAT64):
        up = np.empty(every.size, STORED[wide])
        kernels.cast(dtype, wide, up, every)
        expected = widen(dtype, every).astype(up.dtype)
        np.testing.assert_array_equal(canonical(wide, up), canonical(wide, expected))
        down = np.empty_like(every)
        kernels.cast(wide, dtype, down, up)
        np.testing.assert_array_equal(canonical(dtype, down), canonical(dtype, every))


@pytest.mark.parametrize("dtype", NARROW, ids=lambda dtype: dtype.name)
def test_rounding_at_and_beside_every_tie(dtype: DType) -> None:
    finite = widen(dtype, np.arange(1 << 8 * dtype.itemsize - 1).astype(STORED[dtype])).astype(np.float64)
    low = finite[np.isfinite(finite)]
    ties = (low + np.append(low[1:], 2 * low[-1] - low[-2])) / 2
    middle = ties.astype(np.float32)
    around = np.concatenate([middle, np.nextafter(middle, np.float32(0)), np.nextafter(middle, np.float32(np.inf))])
    for values in (around, -around):
        got = np.empty(values.size, STORED[dtype])
        kernels.cast(DType.FLOAT32, dtype, got, values)
        np.testing.assert_array_equal(canonical(dtype, got), canonical(dtype, narrow(dtype, values)))


@settings(max_examples=60)
@given(st.sampled_from(FLOATS), st.sampled_from(FLOATS), lengths, offsets, offsets, seeds)
def test_cast(source: DType, destination: DType, length: int, here: int, there: int, seed: int) -> None:
    values = samples(source, length, seed)
    got = Misaligned(np.zeros(length, STORED[destination]), there)
    kernels.cast(source, destination, got.array, Misaligned(values, here).array)
    wide = widen(source, values)
    through = wide.astype(np.float32 if destination in NARROW else STORED[destination])  # as torch does
    got.check(destination, narrow(destination, through))


@pytest.mark.parametrize("dtype", SIXTEEN, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("op", [Op.MIN, Op.MAX], ids=lambda op: op.name)
def test_min_and_max_of_every_16_bit_float(op: Op, dtype: DType) -> None:
    torch = pytest.importorskip("torch")
    kind, of = (getattr(torch, name) for name in (dtype.name.lower(), f"{op.name.lower()}imum"))
    every = np.arange(1 << 16).astype(np.uint16)
    others = [every[::-1], np.random.default_rng(5).permutation(every)]
    others += [np.full_like(every, bits) for bits in (0, 0x8000, 1, 0x8001, *PECULIAR[dtype])]
    for other in others:
        for first, second in ((every, other), (other, every)):
            got = first.copy()
            kernels.reduce(op, dtype, got, second)
            np.testing.assert_array_equal(got, _chosen(op, dtype, first, second))
            as_torch = of(*(torch.from_numpy(bits.copy()).view(kind) for bits in (first, second)))
            np.testing.assert_array_equal(widen(dtype, got), as_torch.float().numpy())


def _chosen(op: Op, dtype: DType, first: Array, second: Array) -> Array:
    """The bits of the one that wins; a NaN is the second's if both are, and becomes quiet (bfloat16: 0x7FC0)."""
    a, b = widen(dtype, first), widen(dtype, second)
    bits = np.where(np.isnan(b) | ((b < a if op == Op.MIN else b > a) & ~np.isnan(a)), second, first)
    nan = np.isnan(a) | np.isnan(b)
    return np.where(nan, bits | 0x200 if dtype == DType.FLOAT16 else 0x7FC0, bits).astype(np.uint16)


@pytest.mark.parametrize("dtype", SIXTEEN, ids=lambda dtype: dtype.name)
def test_sums_of_16_bit_floats_beside_a_nan(dtype: DType) -> None:
    """A NaN takes another way than numbers do: wherever it is, the others are rounded as ever."""
    numbers = np.arange(1 << 16).astype(np.uint16)
    numbers = numbers[~np.isnan(widen(dtype, numbers))]
    shuffled = np.random.default_rng(6).permutation(numbers)
    total = widen(dtype, numbers) + widen(dtype, shuffled)
    clean = ~np.isnan(total)  # infinities of both signs
    a, b = numbers[clean], shuffled[clean]
    np.testing.assert_array_equal(_sum(dtype, a, b), narrow(dtype, total[clean]))
    for place in range(130):
        spoilt = a[1000:1130].copy()
        spoilt[place] = PECULIAR[dtype][place % len(PECULIAR[dtype])]
        expected = narrow(dtype, widen(dtype, spoilt) + widen(dtype, b[1000:1130]))
        got = canonical(dtype, _sum(dtype, spoilt, b[1000:1130]))
        np.testing.assert_array_equal(got, canonical(dtype, expected))


def _sum(dtype: DType, a: Array, b: Array) -> Array:
    total = a.copy()
    kernels.reduce(Op.SUM, dtype, total, b)
    return total


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda dtype: dtype.name)
@settings(max_examples=60)
@given(divisors | st.integers(1, 300) | st.integers(1, 2**32 - 1), seeds)
def test_integers_are_divided_towards_zero(dtype: DType, divisor: int, seed: int) -> None:
    values = _beside_multiples(dtype, divisor, seed)
    got = np.empty_like(values)
    kernels.finalize(dtype, got, values, divisor)
    assert got.tolist() == [abs(v) // divisor * (1 if v >= 0 else -1) for v in values.tolist()]


def _beside_multiples(dtype: DType, divisor: int, seed: int) -> Array:
    """All values of 8 and 16 bits; else the ends of the type, and numbers around multiples of all sizes."""
    limits = np.iinfo(STORED[dtype])
    if limits.bits <= 16:
        return np.arange(limits.min, limits.max + 1).astype(STORED[dtype])
    random = np.random.default_rng(seed)
    most = limits.max // divisor
    factors = [int(most * share) for share in 2.0 ** -random.integers(0, limits.bits, 200) * random.random(200)]
    factors += [0, 1, most, most - 1]
    near = [factor * divisor + step for factor in factors for step in (-1, 0, 1)]
    ends = [limits.max, limits.max - 1, limits.min, limits.min + 1]
    return np.array([v for n in near for v in (n, -n) if limits.min <= v <= limits.max] + ends, STORED[dtype])


def test_nan_wins_and_conversions_keep_it() -> None:
    a, b = np.array([np.nan, 1, -np.inf], np.float32), np.array([1, np.nan, np.nan], np.float32)
    for op in (Op.SUM, Op.AVERAGE, Op.MIN, Op.MAX, Op.PRODUCT):
        result = a.copy()
        kernels.reduce(op, DType.FLOAT32, result, b)
        assert np.isnan(result).all()
    bits = np.array([0x7F800001, 0xFFC00000, 0x7FFFFFFF], np.uint32)
    for dtype, expected in ((DType.BFLOAT16, [0x7FC0] * 3), (DType.FLOAT16, [0x7E00, 0xFE00, 0x7FFF])):
        got = np.empty(3, np.uint16)
        kernels.cast(DType.FLOAT32, dtype, got, bits)
        assert got.tolist() == expected


@pytest.mark.parametrize("dtype", FLOAT8, ids=lambda dtype: dtype.name)
def test_float8_is_torch_s(dtype: DType) -> None:
    torch = pytest.importorskip("torch")
    kind = getattr(torch, dtype.name.lower())
    every = np.arange(256, dtype=np.uint8)
    up = np.empty(256, np.float32)
    kernels.cast(dtype, DType.FLOAT32, up, every)
    np.testing.assert_array_equal(up, torch.from_numpy(every).view(kind).float().numpy())
    values = np.concatenate([samples(DType.FLOAT32, 20_000, 7), np.nextafter(up, np.float32(0)), up * 1.0625, up * 3])
    down = np.empty(values.size, np.uint8)
    kernels.cast(DType.FLOAT32, dtype, down, values)
    expected = torch.from_numpy(values).to(kind).view(torch.uint8).numpy()
    np.testing.assert_array_equal(canonical(dtype, down), canonical(dtype, expected))


def test_what_means_nothing_is_refused() -> None:
    zeros = np.zeros(16, np.uint8)
    refused = [(op, dtype) for op in Op for dtype in DType if not op.supports(dtype)]
    assert len(refused) == 2 * 2 + 3 * (6 + 2)
    for op, dtype in refused:
        with pytest.raises(ValueError, match=f"there is no {op.name.lower()} of {dtype.name.lower()}"):
            kernels.reduce(op, dtype, zeros, zeros.copy())
    with pytest.raises(ValueError, match="bool"):
        kernels.scale(DType.BOOL, zeros, 2.0)


@pytest.mark.parametrize("divisor, dtype, size", [(0, DType.INT8, 4), (1, 77, 4), (1, DType.INT32, 3)])
def test_what_does_not_fit_is_refused(divisor: int, dtype: Any, size: int) -> None:
    with pytest.raises(ValueError, match=r"divisor|dtype|elements"):
        kernels.reduce_many(Op.SUM, dtype, [np.zeros(size, np.int8)], [np.zeros(size, np.int8)], divisor)
    with pytest.raises(ValueError, match="needed"):
        kernels.reduce(Op.SUM, DType.INT8, np.zeros(4, np.int8), np.zeros(5, np.int8))
