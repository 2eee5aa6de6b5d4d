"""Batch normalization by the statistics of all ranks' batches, as Horovod's and torch's, on any device."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from byteps_like.torch.calls.reductions import Sum
from byteps_like.torch.job import runtime as _runtime
from byteps_like.torch.ops.differentiable import push_pull
from byteps_like.torch.ops.gather_api import allgather


class SyncBatchNorm(torch.nn.modules.batchnorm._BatchNorm):
    """Batch normalization with the mean and variance of the batches of all ranks; replaces BatchNorm1d, 2d and 3d.

    Inputs have the shape (N, C, ...). N may differ between ranks and may be 0. Gradients of weight and bias are this
    rank's own, for DistributedOptimizer to average. All ranks must run their forwards and backwards in the same order.

    In training, blocks for an all-gather of 8 (2 C + 1) bytes per rank in forward, and for an all-reduce of 16 C bytes
    in backward; for inputs on a device, that includes the host's wait for the device. Sends nothing in evaluation or in
    a world of one.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        process_set: object = None,
        **place: Any,
    ) -> None:
        """`process_set`: whose batches count, instead of all ranks'. `place`: torch's device= and dtype=."""
        super().__init__(num_features, eps, momentum, affine, track_running_stats, **place)
        self.process_set = process_set

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The normalized input. Raises as `allgather` does."""
        self._check_input_dim(input)
        tracks = self.training and self.track_running_stats
        if tracks and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        own = self.training or self.running_mean is None
        if not own or _runtime.current().scope(self.process_set).size == 1:
            mean, var = (self.running_mean, self.running_var) if tracks or not own else (None, None)
            return functional.batch_norm(input, mean, var, self.weight, self.bias, own, self._share(), self.eps)
        moments = _Moments.of(input.detach(), self.process_set)
        if tracks:
            self._track(moments)
        return _Normalize.apply(input, self.weight, self.bias, moments, self.eps, self.process_set)  # type: ignore[no-untyped-call,no-any-return]

    def _share(self) -> float:
        """Of the newest batch in the running statistics."""
        if self.momentum is not None:
            return self.momentum
        return 1.0 / max(int(self.num_batches_tracked or 1), 1)

    def _track(self, moments: _Moments) -> None:
        share = self._share()
        if self.running_mean is not None and self.running_var is not None and moments.count:
            unbiased = moments.var * (moments.count / max(moments.count - 1.0, 1.0))
            self.running_mean.lerp_(moments.mean.to(self.running_mean), share)
            self.running_var.lerp_(unbiased.to(self.running_var), share)


class _Moments:
    """Mean and variance per channel over all ranks, in float64 on the host, and of how many elements."""

    def __init__(self, count: float, mean: torch.Tensor, var: torch.Tensor) -> None:
        self.count, self.mean, self.var = count, mean, var

    @classmethod
    def of(cls, input: torch.Tensor, process_set: object) -> _Moments:
        """Blocks. Each rank's squares are about its own mean, so that nothing cancels when they are put together."""
        wide = _wide(input)
        count = wide.numel() // max(wide.size(1), 1)
        mean = wide.sum(_rest(wide)) / max(count, 1)
        squares = (wide - _along(mean, wide)).square().sum(_rest(wide))
        row = torch.cat([torch.tensor([float(count)], dtype=torch.float64, device="cpu"), _host(mean), _host(squares)])
        rows = allgather(row[None], process_set=process_set)
        counts, means, sums = rows[:, :1], *rows[:, 1:].chunk(2, dim=1)
        total = float(counts.sum())
        whole = (counts * means).sum(0) / max(total, 1.0)
        var = (sums + counts * (means - whole).square()).sum(0) / max(total, 1.0)
        return cls(total, whole, var)


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, input: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, moments: _Moments,
        eps: float, process_set: object,
    ) -> torch.Tensor:  # fmt: skip
        wide = _wide(input)
        mean = moments.mean.to(wide)
        scale = (moments.var + eps).rsqrt().to(wide)
        ctx.save_for_backward(input, weight, mean, scale)
        ctx.count, ctx.process_set = moments.count, process_set
        out = (wide - _along(mean, wide)) * _along(scale if weight is None else scale * weight.to(wide), wide)
        return (out if bias is None else out + _along(bias.to(wide), wide)).to(input.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        input, weight, mean, scale = ctx.saved_tensors
        wide, grad = _wide(input), _wide(gradients[0])
        centered = wide - _along(mean, wide)
        own = torch.stack([grad.sum(_rest(grad)), (grad * centered).sum(_rest(grad))])
        of_input = None
        if ctx.needs_input_grad[0]:
            sums = push_pull(_host(own), op=Sum, process_set=ctx.process_set) / max(ctx.count, 1.0)
            dy, dy_centered = sums.to(wide)
            factor = scale if weight is None else scale * weight.to(wide)
            shifted = grad - _along(dy, wide) - centered * _along(dy_centered * scale.square(), wide)
            of_input = (shifted * _along(factor, wide)).to(input.dtype)
        of_weight = (own[1] * scale).to(weight.dtype) if ctx.needs_input_grad[1] else None
        of_bias = own[0].to(gradients[0].dtype if weight is None else weight.dtype) if ctx.needs_input_grad[2] else None
        return of_input, of_weight, of_bias, None, None, None


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """In at least float32."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().double()


def _rest(tensor: torch.Tensor) -> list[int]:
    """All dimensions but that of the channels."""
    return [0, *range(2, tensor.dim())]


def _along(channels: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """A value per channel, to be combined with `tensor`."""
    return channels.view(1, -1, *[1] * (tensor.dim() - 2))
