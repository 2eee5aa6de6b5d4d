"""One parameter's gradient and its place in an arena."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Protocol

import torch

from byteps_like.errors import InvalidArgumentError


class HasName(Protocol):
    """Something with a gradient that has a name."""

    name: str


class Slot:
    """One parameter's gradient and its place. One round takes it from `passes == 0` through `stage` to `land`.

    Where the wire has the gradient's own element type, `p.grad` is a view of the arena. A gradient that autograd made
    afresh (because `p.grad` was None, torch's default after `zero_grad`) is copied in and `p.grad` bound to its place:
    one read and one write, where clearing the arena and accumulating into it would be two writes and two reads.
    With compression `p.grad` stays what autograd made, and is cast into the arena and back.

    A gradient whose norm is above `limit` is scaled down to it, where that isn't 0.
    """

    transform: Callable[[Slot], None] | None = None
    """What is made of the gradient in `region` before it is sent (see onebit_adam)."""

    def __init__(self, name: str, parameter: torch.Tensor, index: int, wire: torch.dtype, limit: float = 0.0) -> None:
        self.name = name
        self.parameter = parameter
        self.dtype, self.device = parameter.dtype, parameter.device
        self.index = index
        self.limit = limit
        self.is_view = wire is parameter.dtype
        self.region = torch.empty(0, device="cpu")
        self.parts = range(0)
        self.warns_sparse = True
        self.was_sparse = False
        self.passes = 0
        self.ready = False
        self.bound: torch.Tensor | None = None
        self._version = 0

    def fits(self, parameter: torch.Tensor) -> bool:
        """Whether the parameter still has the element type and device for which the place was made."""
        return parameter.dtype is self.dtype and parameter.device == self.device

    def place(self, data: torch.Tensor, offset: int) -> None:
        """Takes the place at element `offset` of the arena's `data`, with the parameter's own strides if dense. A
        `p.grad` that lies in the place before moves along."""
        grad, was_placed = self.parameter.grad, self.region.numel() > 0
        follows = was_placed and grad is not None and grad.layout is torch.strided and self._holds(grad)
        flat = data[offset : offset + self.parameter.numel()]
        self.region = flat.as_strided(self.parameter.shape, dense_strides(self.parameter))
        if follows:
            self.parameter.grad = self.view()

    def reset(self) -> None:
        """A new round begins."""
        self.passes = 0
        self.ready = False
        self.was_sparse = False
        self.bound = None

    def count(self) -> None:
        """A backward pass has made, or added to, `p.grad`."""
        grad = self.parameter.grad
        # Cleared since the last pass, by other means than the optimizer's zero_grad: the count starts again.
        if self.passes and grad is not self.bound:
            self.passes = 0
        self.passes += 1
        self.bound = grad

    def stage(self, factor: float) -> None:
        """Brings `p.grad`, times `factor`, into the arena; None counts as zeros."""
        grad = self.parameter.grad
        self.ready = True
        if grad is None:
            self.region.zero_()
            self._shape(factor)
            self.bound = None
            return
        if grad.layout is not torch.strided:
            self.was_sparse = True
            if self.warns_sparse:
                warn_sparse(self.name)
            grad = grad.to_dense()
        if not self._holds(grad):
            self.region.copy_(grad.detach())
            if self.is_view:
                grad = self.view()
        self._shape(factor)
        if grad is not self.parameter.grad:
            self.parameter.grad = grad
        self.bound = grad
        self._version = grad._version

    def _shape(self, factor: float) -> None:
        if self.limit:
            norm = torch.linalg.vector_norm(self.region, dtype=torch.float64)
            # Asked of the device alone. A norm that is no number is above nothing.
            shrink = torch.where(norm > self.limit, self.limit / norm, 1.0)
            self.region.mul_(shrink.to(self.region.dtype))
        if self.transform is not None:
            self.transform(self)
        if factor != 1.0:
            self.region.mul_(factor)

    def leave(self) -> None:
        """Takes `p.grad` out of the arena, whose content is about to be overwritten by a round that counts nothing."""
        self.ready = True
        grad = self.parameter.grad
        if grad is not None and grad.layout is torch.strided and self._holds(grad):
            self.parameter.grad = grad.clone()

    def cleared(self) -> bool:
        """Whether `p.grad` is no longer the tensor that was staged, without having been accumulated into."""
        grad = self.parameter.grad
        return grad is not self.bound and (grad is None or grad.grad_fn is None)

    def changed(self) -> bool:
        """Whether somebody has written to `p.grad`, or put another tensor there, since `stage`."""
        grad = self.parameter.grad
        if grad is None:
            return False
        return grad is not self.bound or grad._version != self._version

    def land(self, present: bool, factor: float) -> None:
        """Makes the reduced gradient `p.grad`, or leaves it None if it was None on all ranks."""
        grad = self.parameter.grad
        if grad is None and not present:
            return
        if self.is_view:
            if grad is None:
                self.parameter.grad = self.view()
            if factor != 1.0:
                self.region.mul_(factor)
            return
        if grad is None:
            self.parameter.grad = grad = torch.empty_like(self.parameter)
        grad.detach().copy_(self.region)
        if factor != 1.0:
            grad.detach().mul_(factor)

    def view(self) -> torch.Tensor:
        """A tensor over the slot's place, with a version counter of its own: `changed` needs one per gradient."""
        return self.region.data

    def _holds(self, grad: torch.Tensor) -> bool:
        if not self.is_view or grad.data_ptr() != self.region.data_ptr():
            return False
        return grad.stride() == self.region.stride() and not grad.requires_grad


def dense_strides(parameter: torch.Tensor) -> tuple[int, ...]:
    """The strides of a tensor like `parameter` without holes: its own if it has none (channels_last, for instance)."""
    return torch.empty_like(parameter, device="meta").stride()


_warned_sparse = False


def warn_sparse(name: str) -> None:
    """Warns, once per process, that sparse gradients are sent with all their zeros."""
    global _warned_sparse
    if not _warned_sparse:
        _warned_sparse = True
        warnings.warn(
            f"the gradient of {name!r} is sparse; sparse gradients are made dense before they are reduced",
            stacklevel=2,
        )


def changed_in_flight(slot: HasName) -> InvalidArgumentError:
    """The error for a gradient that was touched between backward and synchronize()."""
    return InvalidArgumentError(
        f"the gradient of {slot.name!r} was changed after backward() had handed it to the network (by clipping,"
        " unscaling or other code), so the change would be lost or counted twice; call optimizer.synchronize() before"
        " changing gradients, and then step() within `with optimizer.skip_synchronize():`"
    )


def too_many_passes(slot: HasName, passes: int) -> InvalidArgumentError:
    """The error for a gradient that backward made once more than it may in a step."""
    return InvalidArgumentError(
        f"the gradient of {slot.name!r} was computed more than backward_passes_per_step={passes} times without a"
        " step(), synchronize() or zero_grad(); raise backward_passes_per_step (or call"
        " set_backward_passes_per_step) to accumulate, or clear the gradients with optimizer.zero_grad()"
    )
