"""Numbers in 1 to 3 bytes, rounded up or down by chance so that means are right.

The fixing-float filter of the authors' code of Li et al., "Scaling distributed machine learning with the parameter
server", OSDI 2014; but theirs doesn't round without bias. Twin of server/store/filters/fixed_float.cc, to the last bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from byteps_like.compression.codec import Draw
from byteps_like.compression.random import random_words, stream_of
from byteps_like.dtypes import DType
from byteps_like.errors import CorruptError, InvalidArgumentError
from byteps_like.store.filters.filter import Payload, PayloadFilter
from byteps_like.wire.crc32c import Buffer

_PURPOSE = 0x666C6F61
"""Of random numbers."""


@dataclass(frozen=True)
class FixedFloat(PayloadFilter):
    """Each number becomes one of 2^(8·bytes) - 1 that are equally spaced from the least to the greatest of a payload:
    one of the two beside it, by chance, so that the mean is the number. What is not finite comes out as NaN.

    A payload: the least and the greatest finite number, in the rows' type; then a code per element, little-endian, of
    which the highest is NaN's.
    """

    name: ClassVar[str] = "float"
    about: ClassVar[str] = "float32 and float64 in 1 to 3 bytes, without bias"
    sole: ClassVar[str] = "bytes"
    takes_rows: ClassVar[bool] = True

    bytes: int = 3
    """Of a number."""

    def __post_init__(self) -> None:
        if self.bytes not in (1, 2, 3):
            raise InvalidArgumentError(f"bytes={self.bytes!r} of filter float: a number takes 1, 2 or 3 bytes")

    @override
    def check(self, dtype: DType) -> None:
        if dtype not in (DType.FLOAT32, DType.FLOAT64):
            raise InvalidArgumentError(f"filter float takes float32 and float64, not {dtype.name.lower()}")

    @override
    def most(self, dtype: np.dtype[Any], nbytes: int) -> int:
        return 2 * dtype.itemsize + nbytes // dtype.itemsize * self.bytes

    @property
    def _not_finite(self) -> int:
        return (1 << 8 * self.bytes) - 1

    @property
    def _highest(self) -> int:
        return self._not_finite - 1

    @override
    def encode(self, dtype: np.dtype[Any], draw: Draw, payload: Buffer) -> Payload:
        values = np.frombuffer(payload, dtype)
        finite = np.isfinite(values)
        known = values if finite.all() else values[finite]
        limits = np.array([known.min(), known.max()] if known.size else [0, 0], dtype) + dtype.type(0)
        low, half = self._halves(limits)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            scale = self._highest / half
            scale = scale if np.isfinite(scale) else np.float64(0)  # all are the same
            codes = (0.5 * values.astype(np.float64) - low) * scale
            codes += random_words(stream_of(0, draw, _PURPOSE, shared=False), values.size) * 2.0**-32
            whole = np.where(finite, np.minimum(codes, self._highest), self._not_finite).astype("<u4")
        written: Payload = limits.tobytes() + whole.view(np.uint8).reshape(-1, 4)[:, : self.bytes].tobytes()
        return written

    @override
    def decode(self, dtype: np.dtype[Any], payload: Payload, most: int) -> Payload:
        begin = 2 * dtype.itemsize
        count, odd = divmod(len(payload) - begin, self.bytes)
        if count < 0 or odd or count * dtype.itemsize > most:
            raise CorruptError("a payload of filter float has no whole numbers, or too many")
        limits = np.frombuffer(payload[:begin], dtype)
        if not np.isfinite(limits).all() or limits[0] > limits[1]:
            raise CorruptError("a payload of filter float has no range")
        low, half = self._halves(limits)
        wide = np.zeros((count, 4), np.uint8)
        wide[:, : self.bytes] = np.frombuffer(payload, np.uint8, offset=begin).reshape(count, self.bytes)
        codes = wide.view("<u4").ravel()
        with np.errstate(over="ignore"):
            values = np.minimum(2 * (low + half * (codes / self._highest)), np.float64(limits[1])).astype(dtype)
        values[codes == self._highest] = limits[1]
        values[codes == self._not_finite] = np.nan
        rows: Payload = values.tobytes()
        return rows

    @staticmethod
    def _halves(limits: Any) -> tuple[np.float64, np.float64]:
        """Half of the least number, and half of how far the greatest is from it: no type is too small for these."""
        low = 0.5 * np.float64(limits[0])
        return low, 0.5 * np.float64(limits[1]) - low
