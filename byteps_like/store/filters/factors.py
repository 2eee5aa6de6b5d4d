"""A matrix as the product of two factors, which servers form.

After Chilimbi et al., "Project Adam: building an efficient and scalable deep learning training system", OSDI 2014,
section 3.2: the gradient of a fully connected layer is the product of what came out of it and of what went in, which
for a batch of K samples are K (M + N) numbers instead of M N. Twin of server/store/filters/factors.cc, to the last bit.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from byteps_like.compression.codec import Draw
from byteps_like.dtypes import DType
from byteps_like.errors import CorruptError, InvalidArgumentError
from byteps_like.store.arrays import Array
from byteps_like.store.filters.filter import Payload, PayloadFilter
from byteps_like.wire.crc32c import Buffer

_COUNT = struct.Struct("<Q")


@dataclass(frozen=True)
class Factors(PayloadFilter):
    """Of matrices of so many columns, cut between rows: M of them, N columns.

    A payload: K (8 bytes, little-endian), then K rows of M and K rows of N elements; the matrix is the sum of their K
    outer products, added from the first to the last. With K = 0 the matrix itself, where that is less.
    """

    name: ClassVar[str] = "factors"
    about: ClassVar[str] = "matrices as two factors, which servers multiply"
    takes_rows: ClassVar[bool] = True
    of_values: ClassVar[bool] = False
    """Those are no products."""

    columns: int

    @property
    @override
    def whole(self) -> int:
        return self.columns

    @override
    def check(self, dtype: DType) -> None:
        if dtype not in (DType.FLOAT32, DType.FLOAT64):
            raise InvalidArgumentError(f"factors are of float32 and float64, not {dtype.name.lower()}")

    @override
    def most(self, dtype: np.dtype[Any], nbytes: int) -> int:
        return _COUNT.size + nbytes

    @override
    def encode(self, dtype: np.dtype[Any], draw: Draw, payload: Buffer) -> Payload:
        return _COUNT.pack(0) + bytes(payload)

    def product(self, left: Array, right: Array) -> Payload:
        """Of `left` (K x M) and `right` (K x N), of one type: the factors, or the matrix, where that is less."""
        if not len(left):
            left, right = (np.zeros((1, one.shape[1]), one.dtype) for one in (left, right))
        if left.size + right.size > left.shape[1] * right.shape[1]:
            return _COUNT.pack(0) + np.ascontiguousarray(left.T @ right).tobytes()
        return _COUNT.pack(len(left)) + np.ascontiguousarray(left).tobytes() + np.ascontiguousarray(right).tobytes()

    @override
    def decode(self, dtype: np.dtype[Any], payload: Payload, most: int) -> Payload:
        count = _COUNT.unpack_from(payload)[0] if len(payload) >= _COUNT.size else 0
        rows, odd = divmod(most, self.columns * dtype.itemsize)
        elements = most // dtype.itemsize if count == 0 else (rows + self.columns) * count
        if odd or len(payload) != _COUNT.size + elements * dtype.itemsize:
            raise CorruptError(
                f"a payload of factors has {len(payload)} bytes, which are not {count} products of {rows} and"
                f" {self.columns} elements"
            )
        given = np.frombuffer(payload, dtype, offset=_COUNT.size)
        if count == 0:
            return bytes(payload[_COUNT.size :])
        left, right = np.split(given, [rows * count])
        matrix = np.zeros((rows, self.columns), dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            for one, other in zip(left.reshape(count, rows), right.reshape(count, self.columns), strict=True):
                matrix += one[:, None] * other
        found: Payload = matrix.tobytes()
        return found
