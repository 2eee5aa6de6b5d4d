"""Element types and operations by the codes they have on the wire; mirrors csrc/base/dtype.h."""

from __future__ import annotations

from enum import IntEnum


class DType(IntEnum):
    """Element type. BOOL is a byte, 0 or 1; the last two have no infinity (E4M3FN), or all that float16 has (E5M2)."""

    FLOAT32 = 0
    FLOAT64 = 1
    FLOAT16 = 2
    BFLOAT16 = 3
    INT8 = 4
    UINT8 = 5
    INT32 = 6
    INT64 = 7
    INT16 = 8
    UINT16 = 9
    UINT32 = 10
    UINT64 = 11
    BOOL = 12
    COMPLEX64 = 13
    COMPLEX128 = 14
    FLOAT8_E4M3FN = 15
    FLOAT8_E5M2 = 16

    __hash__ = int.__hash__  # Enum's is written in Python, and calls are looked up by these

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return _ITEMSIZE[self]

    @property
    def is_float(self) -> bool:
        """Of real numbers with a fraction."""
        return self in _FLOATS

    @property
    def is_complex(self) -> bool:
        """Pairs of a real and an imaginary part."""
        return self in (DType.COMPLEX64, DType.COMPLEX128)

    @property
    def accumulator(self) -> DType:
        """The type in which contributions are reduced: FLOAT32 for floats of 16 and 8 bits, else the type itself."""
        return DType.FLOAT32 if self.is_float and self.itemsize <= 2 else self


_ITEMSIZE = dict(zip(DType, (4, 8, 2, 2, 1, 1, 4, 8, 2, 2, 4, 8, 1, 8, 16, 1, 1), strict=True))
_FLOATS = frozenset({
    DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16, DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2,
})  # fmt: skip


class Op(IntEnum):
    """Reduction. AVERAGE divides the sum by the number of ranks (integers: rounded towards zero).

    Of BOOL the sum is "or", product and average are "and". BAND, BOR and BXOR work bit by bit.
    """

    SUM = 0
    AVERAGE = 1
    MIN = 2
    MAX = 3
    PRODUCT = 4
    BROADCAST = 5
    BAND = 6
    BOR = 7
    BXOR = 8

    __hash__ = int.__hash__

    def supports(self, dtype: DType) -> bool:
        """Whether it means something for `dtype`: complex numbers have no order, floats no bits to combine."""
        if self in (Op.MIN, Op.MAX):
            return not dtype.is_complex
        if self in (Op.BAND, Op.BOR, Op.BXOR):
            return not (dtype.is_complex or dtype.is_float)
        return True
