"""The kernels' meaning in NumPy: slow, obvious, and by other means than the kernels' own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byteps_like.dtypes import DType, Op

Array = NDArray[Any]

# What an element is stored as; 16-bit and 8-bit floats as their bits, complex numbers as their
# parts.
STORED: dict[DType, type[np.generic]] = {
    DType.FLOAT32: np.float32,
    DType.FLOAT64: np.float64,
    DType.FLOAT16: np.uint16,
    DType.BFLOAT16: np.uint16,
    DType.INT8: np.int8,
    DType.UINT8: np.uint8,
    DType.INT32: np.int32,
    DType.INT64: np.int64,
    DType.INT16: np.int16,
    DType.UINT16: np.uint16,
    DType.UINT32: np.uint32,
    DType.UINT64: np.uint64,
    DType.BOOL: np.uint8,
    DType.COMPLEX64: np.float32,
    DType.COMPLEX128: np.float64,
    DType.FLOAT8_E4M3FN: np.uint8,
    DType.FLOAT8_E5M2: np.uint8,
}
FLOATS = (DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16, DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2)
FLOAT8 = (DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2)
NARROW = (DType.FLOAT16, DType.BFLOAT16, *FLOAT8)
REDUCTIONS = tuple(op for op in Op if op != Op.BROADCAST)


def parts(dtype: DType) -> int:
    """Stored values per element: two for complex numbers."""
    return 2 if dtype.is_complex else 1


def widen(dtype: DType, stored: Array) -> Array:
    """The values of `stored` in the type they are summed in."""
    if dtype == DType.FLOAT16:
        return stored.view(np.float16).astype(np.float32)
    if dtype == DType.BFLOAT16:
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return _FLOAT8[dtype][stored] if dtype in FLOAT8 else stored


def narrow(dtype: DType, values: Array) -> Array:
    """The way back: 16-bit and 8-bit floats rounded to nearest even."""
    if dtype == DType.FLOAT16:
        return values.astype(np.float16).view(np.uint16)
    if dtype in FLOAT8:
        return _nearest_float8(dtype, values)
    return _nearest_bfloat(values) if dtype == DType.BFLOAT16 else values


def _nearest_bfloat(values: Array) -> Array:
    """Chooses between the two neighbours by their distance in double; infinity counts as 2^128."""
    bits = values.view(np.uint32)
    below = (bits >> 16).astype(np.uint16)
    above = below + np.uint16(1)
    magnitude = np.abs(values.astype(np.float64))
    to_below, to_above = (np.abs(magnitude - _magnitude(bound)) for bound in (below, above))
    up = (to_above < to_below) | ((to_above == to_below) & (below % 2 == 1))
    rounded = np.where(np.isinf(values), below, np.where(up, above, below))
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


def _magnitude(bfloat: Array) -> Array:
    value = np.abs((bfloat.astype(np.uint32) << 16).view(np.float32).astype(np.float64))
    return np.where(np.isinf(value), 2.0**128, value)


def _float8_values(mantissa_bits: int, bias: int, has_infinity: bool) -> Array:
    """What each byte means, by the definition of the format."""
    exponent, mantissa = np.divmod(np.arange(128), 1 << mantissa_bits)
    fraction = mantissa / (1 << mantissa_bits)
    values = np.where(exponent == 0, fraction * 2.0 ** (1 - bias), (1 + fraction) * 2.0 ** (exponent - bias))
    if has_infinity:
        values[124:] = [np.inf, np.nan, np.nan, np.nan]
    else:
        values[127] = np.nan
    return np.concatenate([values, -values]).astype(np.float32)


_FLOAT8 = {DType.FLOAT8_E4M3FN: _float8_values(3, 7, False), DType.FLOAT8_E5M2: _float8_values(2, 15, True)}


def _nearest_float8(dtype: DType, values: Array) -> Array:
    """Looks the neighbours up; the first value that is too large stands for infinity (E5M2) or 448 (E4M3FN)."""
    finite = _FLOAT8[dtype][: 124 if dtype == DType.FLOAT8_E5M2 else 127].astype(np.float64)
    scale = np.append(finite, 2 * finite[-1] - finite[-2])
    largest = scale[-1] if dtype == DType.FLOAT8_E5M2 else finite[-1]
    magnitude = np.minimum(np.abs(values.astype(np.float64)), largest)
    above = np.searchsorted(scale, np.where(np.isnan(magnitude), 0, magnitude))
    below = np.maximum(above - 1, 0)
    to_below, to_above = magnitude - scale[below], scale[above] - magnitude
    code = np.where((to_below < to_above) | ((to_below == to_above) & (below % 2 == 0)), below, above)
    return (np.where(np.isnan(values), 127, code) + 128 * np.signbit(values)).astype(np.uint8)


def apply(op: Op, dtype: DType, a: Array, b: Array) -> Array:
    """a op b, element by element, of values widened from `dtype`. Of 0 and -0 min and max take the first."""
    if dtype == DType.BOOL and op != Op.BROADCAST:
        return _of_bools(op, a != 0, b != 0).astype(a.dtype)
    if op in _BITWISE:
        return _BITWISE[op](a, b)
    if op == Op.PRODUCT and dtype.is_complex:
        (x, y), (u, v) = a.reshape(-1, 2).T, b.reshape(-1, 2).T
        return np.stack([x * u - y * v, x * v + y * u], axis=1).ravel()
    if op in (Op.MIN, Op.MAX):
        best = np.where(b < a if op == Op.MIN else b > a, b, a)
        return np.where(a != a, a, np.where(b != b, b, best))
    if op == Op.BROADCAST:
        return b.copy()
    return a * b if op == Op.PRODUCT else a + b


_BITWISE = {Op.BAND: np.bitwise_and, Op.BOR: np.bitwise_or, Op.BXOR: np.bitwise_xor}


def _of_bools(op: Op, a: Array, b: Array) -> Array:
    if op == Op.BXOR:
        return a != b
    return a | b if op in (Op.SUM, Op.MAX, Op.BOR) else a & b


def divide(dtype: DType, values: Array, divisor: int) -> Array:
    """Floats divided, integers rounded towards zero (in Python's integers, of any size), bools left alone."""
    if divisor == 1 or dtype == DType.BOOL:
        return values
    if values.dtype.kind == "f":
        return values / values.dtype.type(divisor)
    return np.array([abs(value) // divisor * (-1 if value < 0 else 1) for value in values.tolist()], values.dtype)


def reduce_many(op: Op, dtype: DType, sources: Sequence[Array], divisor: int) -> Array:
    """All sources reduced in order in the accumulator's type, divided, rounded once."""
    total = widen(dtype, sources[0])
    for source in sources[1:]:
        total = apply(op, dtype, total, widen(dtype, source))
    return narrow(dtype, divide(dtype, total, divisor))


def scale(dtype: DType, stored: Array, factor: float) -> Array:
    """Floats times the factor; integers in double, truncated, kept within the type's range."""
    values = widen(dtype, stored)
    if values.dtype.kind == "f":
        return narrow(dtype, values * values.dtype.type(factor))
    limits = np.iinfo(values.dtype)
    products = values.astype(np.float64) * factor
    exact = [0 if np.isnan(p) else limits.max if p >= limits.max else limits.min if p <= limits.min else int(p)
             for p in products.tolist()]  # fmt: skip
    return np.array(exact, values.dtype)


def canonical(dtype: DType, stored: Array) -> Array:
    """Bits for comparison: every NaN the same one, since IEEE 754 leaves open which an operation gives."""
    values = widen(dtype, stored)
    if values.dtype.kind != "f":
        return stored
    values = np.where(np.isnan(values), values.dtype.type(np.nan), values)
    return values.view(np.uint32 if values.dtype == np.float32 else np.uint64)


_SPECIAL = (0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 65504.0, 65519.9, 65520.0, 2.0**-24, 2.0**-25, 3 * 2.0**-26,
            2.0**-14, 448.0, 464.0, 464.1, 480.0, 61440.0, 61439.0, 2.0**-17, 2.0**-10, 1.1 * 2.0**-10, 2.0**-133,
            2.0**-149, 3.4028235e38, -3.4028235e38, 3.3961775e38, 1e300, 5e-324)  # fmt: skip


def samples(dtype: DType, count: int, seed: int) -> Array:
    """Stored values of which some are ordinary, some any bits at all, some special (NaN, infinities, denormals)."""
    random = np.random.default_rng(seed)
    stored, count = STORED[dtype], count * parts(dtype)
    if dtype == DType.BOOL:
        return random.integers(0, 2, count, np.uint8)
    anything = random.integers(0, 256, count * np.dtype(stored).itemsize, np.uint8).view(stored)
    if not (dtype in FLOATS or dtype.is_complex):
        limits = np.iinfo(stored)
        special = np.array([0, 1, 2, limits.max, limits.max - 1, limits.min, limits.min + 1], stored)
        return np.where(random.random(count) < 0.3, random.choice(special, count), anything)
    with np.errstate(all="ignore"):
        computed = np.float64 if stored == np.float64 else np.float32
        ordinary = narrow(dtype, random.standard_normal(count).astype(computed))
        special = narrow(dtype, np.array(_SPECIAL).astype(computed))
    kind = random.integers(0, 4, count)
    return np.where(kind == 0, random.choice(special, count), np.where(kind == 1, anything, ordinary))
