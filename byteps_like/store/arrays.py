"""Arrays of NumPy and tensors of PyTorch as memory that can be sent from and received into. Imports no torch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byteps_like.dtypes import DType
from byteps_like.errors import InvalidArgumentError

Array = NDArray[Any]

_KEPT = {"float32": DType.FLOAT32, "float64": DType.FLOAT64, "int64": DType.INT64}
_WIDENED = ("float16", "bfloat16")


@dataclass(frozen=True)
class ValueLanding:
    """Where a value that is read lands."""

    array: Array
    """Contiguous, of the value's type."""
    finish: Callable[[], None] | None
    """Copies it from there to where the caller wants it; None: that is the same place."""


def kept_type(value: object) -> DType:
    """As what servers keep a value like this one: 16-bit floats as float32.

    Raises InvalidArgumentError for what is no array or tensor, or of a type that servers don't keep.
    """
    name = _type_name(value)
    if name not in _KEPT and name not in _WIDENED:
        known = ", ".join([*_KEPT, *_WIDENED])
        raise InvalidArgumentError(f"servers keep no values of {name}: convert it to one of {known}")
    return _KEPT.get(name, DType.FLOAT32)


def dtype_by(given: Any) -> DType:
    """The type that servers keep by a dtype of NumPy or PyTorch, a name, or a type of Python."""
    name = str(given).removeprefix("torch.") if str(given).startswith("torch.") else ""
    try:
        name = name or np.dtype(given).name
        return _KEPT[name]
    except (TypeError, KeyError):
        raise InvalidArgumentError(
            f"servers keep no values of {name or given}: take one of {', '.join(_KEPT)}"
        ) from None


def empty_beside(other: Any, shape: tuple[int, ...], dtype: DType) -> Any:
    """A new array without values; a tensor on the CPU, where `other` is a tensor."""
    if _is_tensor(other):
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=getattr(torch, dtype.name.lower()))
    return np.empty(shape, _numpy_type(dtype))


def ids_of(keys: Any) -> NDArray[np.uint64]:
    """Ids of rows as a contiguous array of u64: of an array or a tensor of integers, or a list. Raises
    InvalidArgumentError for what is none, negative, or not strictly ascending, and says where."""
    array = np.asarray(keys.detach().cpu().numpy() if _is_tensor(keys) else keys)
    if array.dtype.kind not in "iu" and isinstance(keys, list) and all(isinstance(key, int) for key in keys):
        try:
            array = np.array(keys, np.uint64)  # of none, or of large and small ones
        except OverflowError:
            raise InvalidArgumentError("keys are integers from 0 to 2^64 - 1") from None
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InvalidArgumentError(
            f"keys must be one row of integers, of uint64 or int64, not {array.dtype} of shape {list(array.shape)}"
        )
    if array.size and array.min() < 0:
        place = int(np.argmax(array < 0))
        raise InvalidArgumentError(f"keys[{place}]={array[place]}: keys are integers from 0 to 2^64 - 1")
    ids = np.ascontiguousarray(array, np.uint64)
    if ids.size > 1 and not (ascending := ids[1:] > ids[:-1]).all():
        place = int(np.argmin(ascending)) + 1
        raise InvalidArgumentError(
            f"keys[{place}]={ids[place]} after keys[{place - 1}]={ids[place - 1]}: keys must ascend, each once; sort"
            " them (numpy.unique), and add up the rows of equal ones"
        )
    return ids


def shape_of(value: Any) -> tuple[int, ...]:
    """Its extents."""
    return tuple(int(extent) for extent in value.shape)


def outgoing(value: Any, dtype: DType) -> Array:
    """Its elements as a contiguous array of `dtype`: its own memory where it is one on the CPU, else a copy."""
    if _is_tensor(value):
        value = value.detach().cpu()
        value = (value.float() if _type_name(value) == "bfloat16" else value).numpy()
    return np.asarray(value, _numpy_type(dtype), order="C")


def landing(out: Any, dtype: DType) -> ValueLanding:
    """Where a value of `dtype` lands so that it gets to `out`. Raises InvalidArgumentError if it can't be written."""
    array = _writable(out)
    if array is not None and array.dtype == _numpy_type(dtype) and array.flags.c_contiguous:
        return ValueLanding(array, None)
    staged = np.empty(shape_of(out), _numpy_type(dtype))
    return ValueLanding(staged, lambda: _copy(staged, out))


def _writable(out: Any) -> Array | None:
    """The memory of `out` as an array; None where NumPy can't see it."""
    if _is_tensor(out):
        on_cpu = out.device.type == "cpu" and _type_name(out) != "bfloat16"
        return out.detach().numpy() if on_cpu else None
    if not isinstance(out, np.ndarray) or not out.flags.writeable:
        raise InvalidArgumentError("out is neither a tensor nor an array that can be written")
    return out


def _copy(staged: Array, out: Any) -> None:
    if _is_tensor(out):
        out.detach().copy_(sys.modules["torch"].from_numpy(staged))
    else:
        out[...] = staged


def _is_tensor(value: object) -> bool:
    torch = sys.modules.get("torch")  # who has a tensor has imported it
    return torch is not None and isinstance(value, torch.Tensor)


def _type_name(value: object) -> str:
    if not _is_tensor(value) and not isinstance(value, np.ndarray):
        raise InvalidArgumentError(f"a value must be a NumPy array or a tensor, not {type(value).__name__}")
    return str(value.dtype).removeprefix("torch.")  # type: ignore[attr-defined]


def _numpy_type(dtype: DType) -> np.dtype[Any]:
    return np.dtype(dtype.name.lower())
