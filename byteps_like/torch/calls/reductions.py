"""How a tensor is reduced: what BytePS's and Horovod's arguments ask for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Protocol

import torch

from byteps_like.dtypes import Op
from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.compression.policy import Compress

Average = Op.AVERAGE
Sum = Op.SUM
Min = Op.MIN
Max = Op.MAX
Product = Op.PRODUCT


class Adasum:
    """The value of `op=` that selects Adasum (Maleki et al., MLSys 2021), under Horovod's name.

    It adds up what differs between gradients and averages what they have in common. For `allreduce` and
    DistributedOptimizer, with floating-point tensors. Raises InvalidArgumentError there unless the number of ranks is a
    power of two.
    """


@dataclass(frozen=True)
class Reduction:
    """How one tensor is reduced. `root`, a world rank, counts for Op.BROADCAST; larger `priority` goes first, 0 says
    nothing: then it is that of `declare`."""

    op: Op
    priority: int = 0
    root: int = 0
    prescale: float = 1.0
    postscale: float = 1.0
    adasum: bool = False
    codec: str = ""
    """TensorSpec.codec."""
    purpose: str = ""
    """What else all ranks must mean by it."""

    @cached_property
    def kind(self) -> str:
        """First part of the operation's name."""
        return "broadcast" if self.op is Op.BROADCAST else "push_pull"


def resolve_op(average: bool | None, op: object) -> Op:
    """The reduction that BytePS's `average=` or Horovod's `op=` asks for; Average by default."""
    if op is None:
        return Op.SUM if average is False else Op.AVERAGE
    if average is not None:
        raise InvalidArgumentError("give average= or op=, not both")
    if not isinstance(op, Op) or op is Op.BROADCAST:
        named = getattr(op, "__name__", repr(op))
        raise InvalidArgumentError(f"op={named} is not supported; use Average, Sum, Min, Max or Product")
    return op


def resolve(
    average: bool | None, op: object, priority: int = 0, prescale: float = 1.0, postscale: float = 1.0
) -> Reduction:
    """The reduction a caller asked for. Raises InvalidArgumentError for contradictions and unknown operations."""
    try:
        return _resolved(average, op, priority, prescale, postscale)
    except TypeError:  # `op` can't be looked up
        return Reduction(resolve_op(average, op), priority, prescale=prescale, postscale=postscale)


@lru_cache(maxsize=256, typed=True)  # programs ask for few, a thousand times a step
def _resolved(average: bool | None, op: object, priority: int, prescale: float, postscale: float) -> Reduction:
    if op is Adasum and average is None:
        return Reduction(Op.SUM, priority, prescale=prescale, postscale=postscale, adasum=True)
    return Reduction(resolve_op(average, op), priority, prescale=prescale, postscale=postscale)


def encoded(reduction: Reduction, way: Compress) -> Reduction:
    """`reduction`, by the codec of `way`. Raises InvalidArgumentError for what single tensors can't have."""
    if not way.is_coded:
        return reduction
    if reduction.adasum or reduction.op not in (Op.SUM, Op.AVERAGE):
        named = "Adasum" if reduction.adasum else reduction.op.name
        raise InvalidArgumentError(
            f"{way.name} can be summed and averaged; op={named} needs compression=Compression.none"
        )
    if way.feedback or way.momentum or way.clip or way.warmup:
        raise InvalidArgumentError(
            f"{way}: codec state belongs to the gradient of a parameter; leave out feedback, momentum, clip and"
            " warm-up, or use DistributedOptimizer"
        )
    return replace(reduction, codec=way.text(0))


class Sized(Protocol):
    """Who takes part in it: so many ranks."""

    @property
    def size(self) -> int:
        """How many."""


def scaled_once(reduction: Reduction, dtype: torch.dtype, ranks: Sized) -> Reduction:
    """`reduction` of tensors of `dtype` over `ranks`, which rounds integers once, after the sum.

    Raises InvalidArgumentError for factors on booleans.
    """
    if reduction.prescale == reduction.postscale == 1.0 or dtype.is_floating_point or dtype.is_complex:
        return reduction
    if dtype is torch.bool:
        raise InvalidArgumentError("prescale and postscale factors need numbers, not torch.bool")
    if scales_average(reduction, dtype):
        return replace(reduction, op=Op.SUM, postscale=reduction.postscale / ranks.size)
    return reduction


def scales_average(reduction: Reduction, dtype: torch.dtype) -> bool:
    """Whether it is an average of whole numbers that is to be multiplied, and must be rounded after that."""
    whole = not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)
    return whole and reduction.op is Op.AVERAGE and reduction.postscale != 1.0
