"""torch tensors on their way to the worker: element types, what is refused and why, memory shared with the core."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import torch

from byteps_like.dtypes import DType, Op
from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.device import devices
from byteps_like.torch.device.api import Device
from byteps_like.worker.api import SharedMemory, TensorSpec

WIRE_DTYPES: dict[torch.dtype, DType] = {
    torch.float32: DType.FLOAT32,
    torch.float64: DType.FLOAT64,
    torch.float16: DType.FLOAT16,
    torch.bfloat16: DType.BFLOAT16,
    torch.int8: DType.INT8,
    torch.uint8: DType.UINT8,
    torch.int32: DType.INT32,
    torch.int64: DType.INT64,
    torch.int16: DType.INT16,
    torch.uint16: DType.UINT16,
    torch.uint32: DType.UINT32,
    torch.uint64: DType.UINT64,
    torch.bool: DType.BOOL,
    torch.complex64: DType.COMPLEX64,
    torch.complex128: DType.COMPLEX128,
    torch.float8_e4m3fn: DType.FLOAT8_E4M3FN,
    torch.float8_e5m2: DType.FLOAT8_E5M2,
}
"""Element types that can be reduced. Others (float8_e8m0fnu, ...) can only be moved, as bytes."""


def wire_dtype(dtype: torch.dtype) -> DType:
    """The wire's code of `dtype`. Raises InvalidArgumentError for one that has none."""
    try:
        return WIRE_DTYPES[dtype]
    except KeyError:
        known = ", ".join(str(item).removeprefix("torch.") for item in WIRE_DTYPES)
        raise InvalidArgumentError(f"tensors of {dtype} can't be reduced; supported are {known}") from None


def reducible(tensor: torch.Tensor, operation: str) -> DType:
    """The code under which `tensor` is reduced. Raises InvalidArgumentError for an element type without one."""
    code = WIRE_DTYPES.get(tensor.dtype)
    if code is None:
        known = ", ".join(str(item).removeprefix("torch.") for item in WIRE_DTYPES)
        raise InvalidArgumentError(f"{operation}: {tensor.dtype} can't be reduced; these can: {known}")
    return code


def wire_op(op: Op, dtype: torch.dtype) -> Op:
    """`op`, of tensors of `dtype`. Raises InvalidArgumentError where that means nothing, as of a least complex number.

    For bool a sum is "any rank", a product and an average are "all ranks".
    """
    if not op.supports(wire_dtype(dtype)):
        raise InvalidArgumentError(f"there is no {op.name} of tensors of {dtype}")
    return op


def spec_of(name: str, tensor: torch.Tensor, priority: int = 0) -> TensorSpec:
    """What ranks must agree on for `tensor` under `name`."""
    return TensorSpec(name, wire_dtype(tensor.dtype), tuple(tensor.shape), priority)


def check_strided(tensor: torch.Tensor, what: str) -> None:
    """Raises InvalidArgumentError unless `tensor` is a plain tensor, and nobody captures a graph of what is done."""
    if not isinstance(tensor, torch.Tensor):
        raise InvalidArgumentError(f"{what} needs a torch.Tensor, not {type(tensor).__name__}")
    if tensor.is_meta:
        raise InvalidArgumentError(f"{what} got a tensor on the meta device, which has no elements")
    device = devices.of(tensor)
    if device is not None:
        devices.check_not_capturing(device, what)
    if tensor.layout is not torch.strided:
        raise InvalidArgumentError(f"{what} got a tensor of layout {tensor.layout}; pass tensor.to_dense()")
    if tensor.is_conj() or tensor.is_neg():
        raise InvalidArgumentError(f"{what} got a lazily conjugated or negated view; pass tensor.resolve_conj()")


def check_in_place(tensor: torch.Tensor, what: str) -> None:
    """Raises InvalidArgumentError unless the core can work in the tensor's own memory."""
    check_strided(tensor, what)
    wire_dtype(tensor.dtype)
    if not tensor.is_contiguous():
        raise InvalidArgumentError(
            f"{what} needs a contiguous tensor, not strides {tensor.stride()} of shape {tuple(tensor.shape)};"
            " pass tensor.contiguous() and copy the result back"
        )


def mark_changed(tensor: torch.Tensor) -> None:
    """Tells autograd that the memory of `tensor` was written behind its back."""
    if not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)


def tensor_over(memory: SharedMemory, dtype: torch.dtype, device: Device | None = None) -> torch.Tensor:
    """A flat tensor over all of `memory`, which lives as long as the tensor or any view of it does.

    With `device` it is page-locked for that long. Raises SystemCallError if it can't be.
    """
    # A class of its own, because an instance of a plain ctypes array has no room for the reference to its memory.
    kind: Any = type("Block", (ctypes.c_char * memory.nbytes,), {})
    block = kind.from_address(memory.address)
    block.memory = memory
    if device is not None:
        weakref.finalize(block, device.lock(memory.address, memory.nbytes)).atexit = False
    return torch.frombuffer(block, dtype=dtype)
