"""A parameter of a sharded arena, and its gradient on its way to the shards."""

from __future__ import annotations

import torch

from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.gradients.freed import FreedGradient
from byteps_like.torch.gradients.slot import Slot, dense_strides

_ADVICE = (
    "with shard='optimizer' each rank keeps its share of a gradient from backward() to step(). Clip by"
    " optimizer.clip_grad_norm_(max_norm); accumulate by backward_passes_per_step; drop gradients by"
    " optimizer.zero_grad(); GradScaler is not supported (bf16 needs none)"
)


class ShardSlot(Slot):
    """A parameter whose memory is a part of a sharded arena, and the state of its gradient in a round."""

    def __init__(self, name: str, parameter: torch.Tensor, index: int, wire: torch.dtype) -> None:
        super().__init__(name, parameter, index, wire)
        self.warns_sparse = False
        self._wire = wire
        self._marker = FreedGradient(parameter.detach(), name, _ADVICE)

    def move(self, data: torch.Tensor, offset: int) -> None:
        """The parameter goes to element `offset` of `data`, with its strides where they have no holes."""
        self.place(data, offset)
        self.region.copy_(self.parameter.detach())
        self.parameter.data = self.region
        self._marker = FreedGradient(self.region, self.name, _ADVICE)

    def check_place(self) -> None:
        """Raises InvalidArgumentError if the parameter has been given other memory."""
        same = self.parameter.dtype is self.dtype and self.parameter.data_ptr() == self.region.data_ptr()
        if not same and self.parameter.numel():
            raise InvalidArgumentError(
                f"parameter {self.name!r} has been given new memory (by .to(), .half() or .data = ...) after its"
                " optimizer was sharded; convert the model first, and copy into parameters with copy_()"
            )

    def take(self) -> torch.Tensor | None:
        """The elements of `p.grad`, flat and in the order of the parameter's memory; `p.grad` is a marker afterwards.

        None if there is no gradient.
        """
        grad = self.parameter.grad
        self.ready = True
        if grad is None:
            return None
        self.parameter.grad = self.bound = self._marker
        grad = grad.detach().to_dense() if grad.layout is not torch.strided else grad.detach()
        strides = dense_strides(self.parameter)
        if grad.stride() != strides:
            grad = torch.empty_strided(grad.shape, strides, dtype=grad.dtype, device="cpu").copy_(grad)
        return self._clipped(grad.as_strided((grad.numel(),), (1,)))

    def _clipped(self, flat: torch.Tensor) -> torch.Tensor:
        if not self.limit:
            return flat
        norm = torch.linalg.vector_norm(flat, dtype=torch.float64)
        return flat.to(self._wire) * float(self.limit / norm) if norm > self.limit else flat

    def reset(self) -> None:
        """A new round begins; what is left of the gradient of the last one goes."""
        super().reset()
        if isinstance(self.parameter.grad, FreedGradient):
            self.parameter.grad = None

    def check_grad(self) -> None:
        """Raises InvalidArgumentError if a gradient was put in the place of the marker, which no step would see."""
        if self.ready and self.parameter.grad is not None and self.parameter.grad is not self.bound:
            raise InvalidArgumentError(
                f"the gradient of {self.name!r} was replaced after backward() had handed it to the network, so it"
                " would be lost; clip by optimizer.clip_grad_norm_(), accumulate by backward_passes_per_step"
            )
