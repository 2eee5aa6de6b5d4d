"""Tensors as a process group takes them: which are refused and why, their element types, their addresses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from byteps_like.dtypes import DType, Op
from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.device.tensors import WIRE_DTYPES

_RED_OPS: Any = dist.ReduceOp.RedOpType
OPS: dict[int, Op] = {
    hash(_RED_OPS.SUM): Op.SUM,
    hash(_RED_OPS.AVG): Op.AVERAGE,
    hash(_RED_OPS.MIN): Op.MIN,
    hash(_RED_OPS.MAX): Op.MAX,
    hash(_RED_OPS.PRODUCT): Op.PRODUCT,
    hash(_RED_OPS.BAND): Op.BAND,
    hash(_RED_OPS.BOR): Op.BOR,
    hash(_RED_OPS.BXOR): Op.BXOR,
    hash(_RED_OPS.PREMUL_SUM): Op.SUM,
}
"""torch's reductions, by their numbers (which are their hashes: the quickest thing to ask a ReduceOp for), and what
they are to the core. PREMUL_SUM is a sum of what was multiplied here."""

_PREMUL = hash(_RED_OPS.PREMUL_SUM)


def usable(tensor: torch.Tensor, operation: str, argument: str) -> torch.Tensor:
    """`tensor`, whose memory the core may use as it is. Raises InvalidArgumentError naming operation and argument."""
    try:
        dense = tensor.layout is torch.strided and tensor.is_contiguous()
        if dense and not tensor.is_conj() and not tensor.is_neg() and (tensor.data_ptr() or not tensor.numel()):
            return tensor
    except (AttributeError, RuntimeError):
        pass
    raise InvalidArgumentError(f"{operation}: {argument} {_reason(tensor)}", operation=operation)


def _reason(tensor: object) -> str:
    if not isinstance(tensor, torch.Tensor):
        return f"is of type {type(tensor).__name__}, not a torch.Tensor"
    if tensor.layout is not torch.strided:
        return (
            f"is sparse ({tensor.layout}): collectives take dense tensors; pass tensor.to_dense(), or gather indices"
            " and values"
        )
    if not tensor.is_contiguous():
        return (
            f"is not contiguous: shape {tuple(tensor.shape)}, strides {tensor.stride()}; pass tensor.contiguous(), and"
            " copy the result back if it is an output"
        )
    if not (tensor.is_conj() or tensor.is_neg()):
        return (
            f"is a {type(tensor).__name__} on {tensor.device} without memory of its own; pass the tensor inside it,"
            " of a DTensor tensor.to_local()"
        )
    return "is a lazily conjugated or negated view; pass tensor.resolve_conj().resolve_neg()"


def movable(tensor: torch.Tensor) -> tuple[DType, int]:
    """The code under which elements of `tensor` travel, and how many of that code each is."""
    code = WIRE_DTYPES.get(tensor.dtype)
    return (DType.UINT8, tensor.element_size()) if code is None else (code, 1)


def reduction(opts: Any, tensor: torch.Tensor, operation: str) -> Op:
    """The core's name of the reduction in `opts`: torch's options, a ReduceOp, or None for a sum.

    Raises InvalidArgumentError where it doesn't fit the elements of `tensor`.
    """
    if opts is None:
        return Op.SUM
    op = getattr(opts, "reduceOp", opts)
    code = OPS.get(hash(op))
    if code is Op.SUM:
        return code
    if code is None:
        raise InvalidArgumentError(f"{operation}: there is no reduction {op}", operation=operation)
    if not code.supports(WIRE_DTYPES.get(tensor.dtype, DType.UINT8)):
        raise InvalidArgumentError(f"{operation}: {code.name} is not defined for {tensor.dtype}", operation=operation)
    return code


def is_premultiplied(opts: Any) -> bool:
    """Whether the reduction in `opts` is a PREMUL_SUM."""
    return hash(getattr(opts, "reduceOp", opts)) == _PREMUL


def one(tensors: torch.Tensor | Sequence[torch.Tensor], operation: str, argument: str) -> torch.Tensor:
    """The only tensor of a list, which is what torch passes. Raises InvalidArgumentError if it can't be used."""
    if not isinstance(tensors, torch.Tensor):
        if len(tensors) != 1:
            raise InvalidArgumentError(f"{operation}: {argument} must be one tensor, not {len(tensors)}")
        tensors = tensors[0]
    return usable(tensors, operation, argument)


def parts(
    tensors: Sequence[torch.Tensor], size: int, like: torch.Tensor, operation: str, argument: str
) -> tuple[list[int], list[int]]:
    """Addresses and element counts of one tensor per rank, all of the type of `like`."""
    if len(tensors) != size:
        raise InvalidArgumentError(f"{operation}: {argument} needs {size} tensors, one per rank, not {len(tensors)}")
    for number, tensor in enumerate(tensors):
        usable(tensor, operation, f"{argument}[{number}]")
        same_type(tensor, like, operation, f"{argument}[{number}]")
    addresses = [tensor.data_ptr() for tensor in tensors]
    anchor = next((address for address in addresses if address), 0)
    # An empty tensor lies nowhere, but the others' places are counted from the first one's.
    return [address or anchor for address in addresses], [tensor.numel() for tensor in tensors]


def same_type(tensor: torch.Tensor, like: torch.Tensor, operation: str, argument: str) -> None:
    """Raises InvalidArgumentError unless both have one element type and one device type."""
    if tensor.dtype != like.dtype:
        raise InvalidArgumentError(f"{operation}: {argument} is of {tensor.dtype}, the other tensor of {like.dtype}")
    if tensor.device.type != like.device.type:
        raise InvalidArgumentError(f"{operation}: {argument} is on {tensor.device}, the other tensor on {like.device}")


def split_counts(tensor: torch.Tensor, splits: Sequence[int], size: int, operation: str, argument: str) -> list[int]:
    """Elements of each rank's part of `tensor`, split along dimension 0 by `splits`."""
    rows = tensor.shape[0] if tensor.dim() else 1
    if len(splits) != size or sum(splits) != rows or min(splits) < 0:
        raise InvalidArgumentError(
            f"{operation}: {argument} {list(splits)} must be {size} numbers that add up to {rows}, the tensor's"
            " dimension 0"
        )
    row = tensor.numel() // rows if rows else 0
    return [row * split for split in splits]


def even_count(tensor: torch.Tensor, size: int, operation: str, argument: str) -> int:
    """Elements of one rank's part when `tensor` is split evenly along dimension 0."""
    rows = tensor.shape[0] if tensor.dim() else 1
    if rows % size:
        raise InvalidArgumentError(
            f"{operation}: dimension 0 of {argument} is {rows}, which {size} ranks can't share evenly; give split sizes"
        )
    return tensor.numel() // size
