"""One parameter's gradient and its place in an arena."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from byteps_like.errors import InvalidArgumentError


class HasName(Protocol):
    """Something with a gradient that has a name."""

    name: str


class Slot:
    """One parameter's gradient and its place. One round takes it from `passes == 0` through `stage_all` to `land_all`:
    many together, since for a small gradient the calls cost more than the bytes.

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
        self.region = self.placed = torch.empty(0, device="cpu")
        """Its place, and the view of it that is `p.grad` in each round. That has a version counter of its own, since
        `changed` needs one per gradient."""
        self.parts = range(0)
        self.warns_sparse = True
        self.was_sparse = False
        self.passes = 0
        self.ready = False
        """Whether it is complete on this rank, in the round under way."""
        self.bound: torch.Tensor | None = None
        """What `p.grad` was when backward last came by, or has become when it was staged."""
        self.version = 0
        """That tensor's, then."""

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
        self.placed = self.region.data
        if follows:
            self.parameter.grad = self.placed

    def reset(self) -> None:
        """A new round begins."""
        reset_all([self])

    def count(self) -> None:
        """A backward pass has made, or added to, `p.grad`."""
        grad = self.parameter.grad
        # Cleared since the last pass, by other means than the optimizer's zero_grad: the count starts again.
        if self.passes and grad is not self.bound:
            self.passes = 0
        self.passes += 1
        self.bound, self.version = grad, 0 if grad is None else grad._version

    def dense(self, grad: torch.Tensor) -> torch.Tensor:
        """The gradient of this round with all its zeros, though it came sparse."""
        self.was_sparse = True
        if self.warns_sparse:
            warn_sparse(self.name)
        return grad.to_dense()

    def shape(self) -> None:
        """What is done to this gradient in its place, before it is scaled as all are."""
        if self.limit:
            norm = torch.linalg.vector_norm(self.region, dtype=torch.float64)
            # Asked of the device alone. A norm that is no number is above nothing.
            shrink = torch.where(norm > self.limit, self.limit / norm, 1.0)
            self.region.mul_(shrink.to(self.region.dtype))
        if self.transform is not None:
            self.transform(self)

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
        """Whether somebody has written to `p.grad`, or put another tensor there, since it was complete."""
        return first_changed([self]) is not None

    def land(self, present: bool, factor: float) -> None:
        """Makes the reduced gradient `p.grad`, or leaves it None if it was None on all ranks."""
        if present or self.parameter.grad is not None:
            land_all([self], factor)

    def _holds(self, grad: torch.Tensor) -> bool:
        if not self.is_view or grad.data_ptr() != self.region.data_ptr():
            return False
        return grad.stride() == self.region.stride() and not grad.requires_grad


def reset_all(slots: Sequence[Slot]) -> None:
    """A new round begins."""
    for slot in slots:
        slot.passes = 0
        slot.ready = slot.was_sparse = False
        slot.bound = None


def stage_all(slots: Sequence[Slot], factor: float) -> None:
    """Brings every `p.grad`, times `factor`, into the arena; None counts as zeros."""
    grads = [slot.parameter.grad for slot in slots]
    absent = [slot for slot, grad in zip(slots, grads, strict=True) if grad is None]
    _clear(absent)
    pairs = zip(slots, grads, strict=True)
    _copy_in([(slot, grad) for slot, grad in pairs if grad is not None and grad is not slot.placed])
    for slot in slots:
        slot.ready = True
        if slot.limit or slot.transform is not None:
            slot.shape()
    if factor != 1.0 and slots:
        torch._foreach_mul_([slot.region for slot in slots], factor)


def _clear(slots: Sequence[Slot]) -> None:
    if slots:
        torch._foreach_zero_([slot.region for slot in slots])
    for slot in slots:
        slot.bound = None


def _copy_in(found: Sequence[tuple[Slot, torch.Tensor]]) -> None:
    if not found:
        return
    dense = [grad if grad.layout is torch.strided else slot.dense(grad) for slot, grad in found]
    torch._foreach_copy_([slot.region for slot, _ in found], dense)
    for (slot, before), grad in zip(found, dense, strict=True):
        late = slot.ready and (before is not slot.bound or before._version != slot.version)
        after = slot.placed if slot.is_view else grad
        if after is not before:
            slot.parameter.grad = after
        # What was changed before it was staged is an error as well, or it would depend on the others' order.
        slot.bound, slot.version = after, -1 if late else after._version


def first_changed(slots: Sequence[Slot]) -> Slot | None:
    """The first that somebody has written to, or has put another tensor in the place of, since it was complete."""
    for slot in slots:
        grad = slot.parameter.grad
        if slot.ready and grad is not None and (grad is not slot.bound or grad._version != slot.version):
            return slot
    return None


def land_all(slots: Sequence[Slot], factor: float) -> None:
    """Makes the reduced gradients every `p.grad`, times `factor`."""
    apart = [slot for slot in slots if not slot.is_view]
    for slot in slots:
        if slot.parameter.grad is None:
            slot.parameter.grad = slot.placed if slot.is_view else torch.empty_like(slot.parameter)
    landed = [slot.region for slot in slots]
    if apart:
        landed = [grad.detach() for slot in apart if (grad := slot.parameter.grad) is not None]
        torch._foreach_copy_(landed, [slot.region for slot in apart])
    if factor != 1.0 and landed:
        torch._foreach_mul_(landed, factor)


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
