"""Casts: what tensors look like on the wire. They cost no state and can be summed as they are.

A compressor has Horovod's two functions, for single tensors, and `wire_dtype`, from which a gradient arena takes the
element type of its shared memory. A user's own need only have the two: they are called for single tensors.
"""

from __future__ import annotations

from typing import Any

import torch


class Compressor:
    """Base of all: sends tensors as they are."""

    @classmethod
    def wire_dtype(cls, dtype: torch.dtype) -> torch.dtype:
        """The element type in which a tensor of `dtype` travels."""
        return dtype

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The tensor to send, and what `decompress` needs to know. Differentiable."""
        return tensor.to(cls.wire_dtype(tensor.dtype)), tensor.dtype

    @classmethod
    def decompress(cls, tensor: torch.Tensor, context: Any) -> torch.Tensor:
        """The received tensor in its own element type. Differentiable."""
        return tensor.to(context)


def is_cast(compression: object) -> bool:
    """Whether `compression` is a compressor whose `wire_dtype` says all that it does."""
    return (
        isinstance(compression, type)
        and issubclass(compression, Compressor)
        and all(_inherited(compression, name) for name in ("compress", "decompress"))
    )


def is_own(compression: object) -> bool:
    """Whether `compression`, a class or an object, has Horovod's two functions and makes something else of them."""
    two = (getattr(compression, name, None) for name in ("compress", "decompress"))
    return all(map(callable, two)) and not is_cast(compression)


def _inherited(kind: type, name: str) -> bool:
    return getattr(getattr(kind, name), "__func__", None) is vars(Compressor)[name].__func__


class NoneCompressor(Compressor):
    """No compression."""


class FP16Compressor(Compressor):
    """Floating-point tensors travel as IEEE half: 11 bits of precision, overflow above 65504."""

    @classmethod
    def wire_dtype(cls, dtype: torch.dtype) -> torch.dtype:
        """float16 for float32 and float64; other types as they are."""
        return torch.float16 if dtype in (torch.float32, torch.float64) else dtype


class BF16Compressor(Compressor):
    """Floating-point tensors travel as bfloat16: 8 bits of precision, the range of float32."""

    @classmethod
    def wire_dtype(cls, dtype: torch.dtype) -> torch.dtype:
        """bfloat16 for float32 and float64; other types as they are."""
        return torch.bfloat16 if dtype in (torch.float32, torch.float64) else dtype


class Float32Compressor(Compressor):
    """Floating-point tensors as codecs take them."""

    @classmethod
    def wire_dtype(cls, dtype: torch.dtype) -> torch.dtype:
        """float32 for floating-point types; other types as they are, which no codec takes."""
        return torch.float32 if dtype.is_floating_point else dtype


CASTS: dict[str, type[Compressor]] = {"none": NoneCompressor, "fp16": FP16Compressor, "bf16": BF16Compressor}
"""By the names that BytePS and Horovod gave them."""
