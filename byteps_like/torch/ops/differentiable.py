"""The blocking operations. Those that leave their input alone are differentiable."""

from __future__ import annotations

from typing import Any

import torch

from byteps_like.dtypes import Op
from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.calls.handles import synchronize
from byteps_like.torch.calls.reductions import Reduction, encoded, resolve
from byteps_like.torch.compression.casts import Float32Compressor, is_own
from byteps_like.torch.compression.policy import RAW
from byteps_like.torch.compression.public import Compression
from byteps_like.torch.compression.rules import check_compression, way_of
from byteps_like.torch.device.tensors import check_strided
from byteps_like.torch.job import runtime as _runtime
from byteps_like.torch.ops.single import broadcast_async_, copied, push_pull_async_inplace, start, start_copied


def push_pull(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    version: int = 0,  # noqa: ARG001 - BytePS's
    priority: int = 0,
    compression: object = Compression.none,
    *,
    op: object = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: object = None,
) -> torch.Tensor:
    """Reduces `tensor` over all ranks and returns the same result on every rank; does not modify `tensor`.

    `average=False` or `op=Sum` adds; `op` may also be Average (the default), Min, Max or Product. Integers wrap when
    they overflow, and their average is rounded towards zero. For bool, Sum and Max are "any rank", Average, Min and
    Product "all ranks". Tensors of any number type, of any shape.

    `name` joins the calls of different ranks; without one, calls with the same shape, dtype and operation meet in
    the order in which they are made. Of waiting operations, the one with the largest `priority` is sent first.
    `version` is accepted for BytePS and ignored. Differentiable for Sum and Average: the gradient is reduced as the
    tensor was.

    `compression`: a cast, a class or object with Horovod's `compress` and `decompress`, or a codec as for
    DistributedOptimizer, without feedback: it takes Sum and Average only, of floating-point tensors, which it makes
    float32.

    A sparse COO tensor may have different entries on each rank, or none; the result is coalesced. It supports only Sum
    and Average of numbers, without compression, and is not differentiable.

    On the wire: `tensor.nbytes` (fewer with compression) up and down per rank.
    Raises InvalidArgumentError, MismatchError (ranks differ in shape, dtype or operation), StalledError (a rank did not
    make the call), PeerLostError.
    """
    reduction = resolve(average, op, priority, prescale_factor, postscale_factor)
    way = RAW if is_own(compression) else way_of(compression)
    if isinstance(tensor, torch.Tensor) and tensor.layout is torch.sparse_coo:
        if way != RAW or is_own(compression):
            raise InvalidArgumentError(
                f"{way.name or 'a cast'}: sparse tensors are not compressed; leave compression out"
            )
        return _reduce(tensor, name, reduction, process_set)
    check_strided(tensor, "push_pull")
    cast = Float32Compressor if way.is_coded else check_compression(compression)
    compressed, context = cast.compress(tensor)
    return cast.decompress(_reduce(compressed, name, encoded(reduction, way), process_set), context)


def push_pull_inplace(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    **options: Any,
) -> torch.Tensor:
    """Like `push_pull`, in place: returns `tensor`, which must be contiguous. Not differentiable."""
    result: torch.Tensor = synchronize(push_pull_async_inplace(tensor, average, name, version, priority, **options))
    return result


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: object = None
) -> torch.Tensor:
    """Returns the `tensor` of rank `root_rank` on all ranks; does not modify the argument.

    Shape and dtype must be the same on all ranks. Differentiable: the root's gradient is the mean over all ranks, the
    others' is zero. Raises as `push_pull` does.
    """
    return _reduce(tensor, name, Reduction(Op.BROADCAST, root=root_rank), process_set)


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: object = None
) -> torch.Tensor:
    """Like `broadcast`, in place: returns `tensor`, which must be contiguous. Not differentiable."""
    result: torch.Tensor = synchronize(broadcast_async_(tensor, root_rank, name, process_set=process_set))
    return result


def _reduce(tensor: torch.Tensor, name: str | None, reduction: Reduction, process_set: object) -> torch.Tensor:
    result: torch.Tensor
    if torch.is_grad_enabled() and getattr(tensor, "requires_grad", False) and tensor.layout is torch.strided:
        result = _Reduce.apply(tensor, name, reduction, process_set)  # type: ignore[no-untyped-call]
    else:
        result = synchronize(start_copied(tensor, name, reduction, process_set))
    return result


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, name: str | None, reduction: Reduction, process_set: object
    ) -> torch.Tensor:
        ctx.name, ctx.reduction, ctx.process_set = name, reduction, process_set
        result: torch.Tensor = synchronize(start(copied(tensor, reduction.kind), name, reduction, process_set))
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, None, None, None]:
        reduction: Reduction = ctx.reduction
        if reduction.adasum or reduction.op not in (Op.SUM, Op.AVERAGE, Op.BROADCAST):
            named = "Adasum" if reduction.adasum else reduction.op.name
            raise InvalidArgumentError(f"push_pull with op={named} has no gradient; use Sum or Average")
        name = None if ctx.name is None else f"{ctx.name}.gradient"
        (gradient,) = gradients
        if reduction.op is not Op.BROADCAST:
            return _reduce(gradient, name, reduction, ctx.process_set), None, None, None
        mean = _reduce(gradient, name, Reduction(Op.AVERAGE), ctx.process_set)
        return (mean if _runtime.rank() == reduction.root else torch.zeros_like(mean)), None, None, None
