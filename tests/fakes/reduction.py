"""The reference reduction of all fakes: NumPy, in the order of ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from byteps_like.dtypes import DType, Op

_NUMPY = {
    DType.FLOAT32: np.float32, DType.FLOAT64: np.float64, DType.FLOAT16: np.float16, DType.BFLOAT16: np.uint16,
    DType.INT8: np.int8, DType.UINT8: np.uint8, DType.INT32: np.int32, DType.INT64: np.int64,
    DType.INT16: np.int16, DType.UINT16: np.uint16, DType.UINT32: np.uint32, DType.UINT64: np.uint64,
    DType.BOOL: np.bool_, DType.COMPLEX64: np.complex64, DType.COMPLEX128: np.complex128,
}  # fmt: skip
_UFUNCS = {
    Op.SUM: np.add, Op.AVERAGE: np.add, Op.PRODUCT: np.multiply, Op.MIN: np.minimum, Op.MAX: np.maximum,
    Op.BAND: np.bitwise_and, Op.BOR: np.bitwise_or, Op.BXOR: np.bitwise_xor,
}  # fmt: skip


_FLOAT8 = {DType.FLOAT8_E4M3FN: torch.float8_e4m3fn, DType.FLOAT8_E5M2: torch.float8_e5m2}


def reduce(contributions: Sequence[bytes], dtype: DType, op: Op, root: int = 0) -> bytes:
    """The reference: contributions of rank 0, 1, ... reduced in that order; 16-bit floats in float32."""
    if op is Op.BROADCAST:
        return contributions[root]
    op = Op.PRODUCT if dtype is DType.BOOL and op is Op.AVERAGE else op
    arrays = [_decoded(item, dtype) for item in contributions]
    total = arrays[0].copy()
    for array in arrays[1:]:
        total = _UFUNCS[op](total, array)
    if op is Op.AVERAGE:
        count = total.dtype.type(len(arrays))
        total = (total - np.fmod(total, count)) // count if total.dtype.kind in "iu" else total / count
    return _encoded(total, dtype)


def _decoded(data: bytes, dtype: DType) -> np.ndarray:
    if dtype in _FLOAT8:
        return torch.tensor(list(data), dtype=torch.uint8).view(_FLOAT8[dtype]).float().numpy()
    array = np.frombuffer(data, _NUMPY[dtype])
    if dtype is DType.BFLOAT16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32) if dtype is DType.FLOAT16 else array


def _encoded(array: np.ndarray, dtype: DType) -> bytes:
    if dtype in _FLOAT8:
        return torch.from_numpy(array).to(_FLOAT8[dtype]).view(torch.uint8).numpy().tobytes()
    if dtype is not DType.BFLOAT16:
        return array.astype(_NUMPY[dtype]).tobytes()
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(array), 0x7FC0, rounded).astype(np.uint16).tobytes()
