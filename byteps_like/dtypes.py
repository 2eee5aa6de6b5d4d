"""Element types and operations by the codes they have on the wire; mirrors csrc/base/dtype.h."""

from __future__ import annotations

from enum import IntEnum


class DType(IntEnum):
    """Element type. bool travels as UINT8 with MAX (sum, "or") or MIN (product, "and")."""

    FLOAT32 = 0
    FLOAT64 = 1
    FLOAT16 = 2
    BFLOAT16 = 3
    INT8 = 4
    UINT8 = 5
    INT32 = 6
    INT64 = 7

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return _ITEMSIZE[self]


_ITEMSIZE = {
    DType.FLOAT32: 4,
    DType.FLOAT64: 8,
    DType.FLOAT16: 2,
    DType.BFLOAT16: 2,
    DType.INT8: 1,
    DType.UINT8: 1,
    DType.INT32: 4,
    DType.INT64: 8,
}


class Op(IntEnum):
    """Reduction. AVERAGE divides the sum by the number of ranks (integers: floor division)."""

    SUM = 0
    AVERAGE = 1
    MIN = 2
    MAX = 3
    PRODUCT = 4
    BROADCAST = 5
