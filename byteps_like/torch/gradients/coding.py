"""What an arena with a codec remembers between rounds: error feedback and momentum, laid out as its gradients are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from byteps_like.compression.feedback import Compensation
from byteps_like.torch.compression.policy import Compress
from byteps_like.torch.device import devices
from byteps_like.torch.device.api import Device
from byteps_like.torch.gradients.rescaling import Rescaling
from byteps_like.torch.gradients.slot import Slot
from byteps_like.worker.api import Declared, Feedback, UsesGpu, Worker

Memory = dict[str, torch.Tensor]
"""What is remembered for one parameter: kind -> tensor of its shape."""

RESIDUAL, MOMENTUM = "residual", "momentum"

_HOST = torch.device("cpu")


class HasPlace(Protocol):
    """A part of an arena that is declared by itself, and its offset in bytes: an arena's Piece."""

    @property
    def declared(self) -> Declared:
        """Its name and partitions."""

    @property
    def offset(self) -> int:
        """Where it begins."""


@dataclass(frozen=True)
class CodedSample:
    """Elements of one partition as they were before a round: the gradient, and what is remembered of them."""

    gradient: torch.Tensor
    memory: Memory


@dataclass(frozen=True)
class Kept:
    """A gradient that this rank doesn't have in the round under way: what was remembered of it before, and what was
    staged in its place if its residual is to be worked out from what lands."""

    slot: Slot
    memory: Memory
    staged: torch.Tensor | None


class ArenaCoding:
    """The codec of an arena of `total` elements, whose buffers the worker's encoding reads and writes: in this host's
    memory, or beside the gradients where a device encodes them.

    Not to be touched while a round is in flight. Where the codec is `off`, gradients travel raw: what it has left out
    is added to the first round of these, so that nothing is lost; momentum goes on.

    Where a rank has no gradient, what is remembered is sent with zeros. If no rank has one, the sum is not applied, so
    `landed` takes back what was sent: the other gradients of the partition are encoded as always, and none pays for it.
    """

    def __init__(self, way: Compress, total: int) -> None:
        self.way = way
        self.total = total
        kinds = ([RESIDUAL] if way.feedback else []) + ([MOMENTUM] if way.momentum else [])
        self._buffers = {kind: torch.zeros(total, device="cpu") for kind in kinds}
        self._device: Device | None = None  # where these are
        self.off = False
        self.fallen = ""
        """Why the codec is off for good; "": it isn't."""
        self._owes = self._paid = False
        self.wanted: range | None = None
        """Elements that are to be sampled as they are sent."""
        self.sample: CodedSample | None = None
        self._offsets: list[int] = []
        self._gaps = {_HOST: torch.empty(0, dtype=torch.int64, device=_HOST)}
        """Elements between the gradients, on each device that asks for them."""
        self._factor = 1.0
        """By which residuals of the round under way are multiplied as they are encoded."""
        self._kept: list[Kept] = []

    @property
    def keeps(self) -> bool:
        """Whether there is anything to remember."""
        return bool(self._buffers)

    @property
    def nbytes(self) -> int:
        """Of what it remembers."""
        return sum(buffer.nbytes for buffer in self._buffers.values())

    def place(self, slots: Sequence[Slot], offsets: Sequence[int]) -> None:
        """The gradients lie at these elements from now on. What is remembered goes with them."""
        before = self.recall(slots) if self._offsets else {}
        self._offsets = list(offsets)
        taken = torch.zeros(self.total, dtype=torch.bool, device="cpu")
        for slot, offset in zip(slots, offsets, strict=True):
            taken[offset : offset + slot.parameter.numel()] = True
        self._gaps = {_HOST: taken.logical_not().nonzero().flatten()}
        for buffer in self._buffers.values():
            buffer.zero_()
        self.remember(slots, before)

    def clear_gaps(self, data: torch.Tensor) -> None:
        """Zeros between the gradients in `data`, which is laid out as they are: what was decoded there would be sent
        again."""
        if data.device not in self._gaps:
            self._gaps[data.device] = self._gaps[_HOST].to(data.device)
        data.index_fill_(0, self._gaps[data.device], 0.0)

    def forget_gaps(self) -> None:
        """Between rounds: what was left out of zeros between the gradients isn't saved with these, and would change the
        scales of codecs, so it must not count either."""
        for buffer in self._buffers.values():
            self.clear_gaps(buffer)

    def recall(self, slots: Sequence[Slot]) -> dict[str, Memory]:
        """Copies of what is remembered, by the parameters' names."""
        return {
            slot.name: {kind: view.clone() for kind, view in self._views(slot).items()} for slot in slots if self.keeps
        }

    def remember(self, slots: Sequence[Slot], memories: Mapping[str, Memory]) -> None:
        """Takes what is in `memories`; what isn't there, or has another shape, is left alone."""
        self._owes = self._owes or self.off
        for slot in slots:
            found = memories.get(slot.name, {})
            for kind, view in self._views(slot).items():
                if kind in found and found[kind].shape == view.shape:
                    view.copy_(found[kind])

    def forget(self) -> None:
        """As at the beginning: for rounds that were thrown away, or whose gradients were no numbers."""
        for buffer in self._buffers.values():
            buffer.zero_()

    def _views(self, slot: Slot) -> Memory:
        offset = self._offsets[slot.index]
        flat = (buffer[offset : offset + slot.parameter.numel()] for buffer in self._buffers.values())
        strided = (part.as_strided(slot.region.shape, slot.region.stride()) for part in flat)
        return dict(zip(self._buffers, strided, strict=True))

    def text(self, rounds: int) -> str:
        """What the worker is to make of the payload after so many rounds."""
        return "" if self.off else self.way.text(rounds)

    def switch(self, on: bool) -> None:
        """Between rounds: whether gradients are encoded; never again once they have fallen."""
        on = on and not self.fallen
        self._owes = self._owes or not (on or self.off)
        self.off = not on

    def before(self, x: torch.Tensor, first: int) -> None:
        """The gradients `x`, those from element `first` on, are about to be sent: sampled, and made what travels if
        that is raw."""
        last = first + x.numel()
        if self.off:
            self._carry(x, slice(first, last))
        elif self.wanted is not None and first <= self.wanted.start and self.wanted.stop <= last:
            window = slice(self.wanted.start, self.wanted.stop)
            memory = {kind: buffer[window].clone() for kind, buffer in self._buffers.items()}
            self.sample = CodedSample(x[window.start - first : window.stop - first].clone(), memory)

    def _carry(self, x: torch.Tensor, part: slice) -> None:
        """What the worker does to elements that it encodes, and nothing is left out of them. On a device the host waits
        for it: few arenas come to this."""
        views = {kind: buffer[part] for kind, buffer in self._buffers.items() if kind == MOMENTUM or self._owes}
        if not views:
            return
        way, host, copies = self.way, x.cpu(), {kind: view.cpu() for kind, view in views.items()}
        found = {kind: copy.numpy() for kind, copy in copies.items()}
        Compensation(found.get(RESIDUAL), found.get(MOMENTUM), way.momentum, way.nesterov).before(host.numpy())
        for target, source in ((x, host), *((views[kind], copy) for kind, copy in copies.items())):
            if target is not source:
                target.copy_(source)
        if RESIDUAL in views:
            views[RESIDUAL].zero_()
            self._paid = True

    def keep(self, slot: Slot, two_way: bool = False) -> None:
        """There is no gradient of `slot` here, in a round that is about to be sent. `two_way`: its sum is encoded with
        feedback of its own."""
        if not self.keeps:
            return
        memory = {kind: view.clone() for kind, view in self._views(slot).items()}
        if RESIDUAL in memory and self._factor != 1.0:
            memory[RESIDUAL].mul_(self._factor)
        staged = slot.region.clone() if two_way and RESIDUAL in memory else None
        self._kept.append(Kept(slot, memory, staged))

    @property
    def has_kept(self) -> bool:
        """Whether something was, in the round under way: the host has to wait for its end."""
        return bool(self._kept)

    def landed(self, present: Callable[[], Sequence[bool]], share: float = 1.0) -> None:
        """A round has ended, maybe one in which what was owed was paid. What was sent for gradients that no rank had
        is owed again: `present` tells for each whether any rank had one. `share`: times the sum that has landed is one
        rank's."""
        self._owes, self._paid = self._owes and not self._paid, False
        kept, self._kept = self._kept, []
        there = present() if kept else ()
        for item in kept:
            if not there[item.slot.index]:
                self._take_back(item, share)

    def _take_back(self, kept: Kept, share: float) -> None:
        views = self._views(kept.slot)
        if kept.staged is not None:
            # Servers have counted what was sent as delivered, with some of what they owed before. So what they made of
            # it, rather than what was sent, is owed again; momentum, which is part of it, has moved on.
            views[RESIDUAL].add_((share * kept.slot.region - kept.staged).to(views[RESIDUAL].device))
            return
        for kind, view in views.items():
            view.copy_(kept.memory[kind])
        if self.off and RESIDUAL in views:
            self._owes = self._owes or bool(views[RESIDUAL].any())

    # The worker's side

    def attach(self, worker: Worker, pieces: Sequence[HasPlace], near: torch.Tensor | None = None) -> None:
        """Tells `worker` where the buffers of `pieces` are; None for those without a codec. `near`: a tensor on the
        device that the worker moves these from and to by itself, if it does."""
        coded = [piece for piece in pieces if piece.declared.spec.codec]
        if self.keeps and coded:
            self._follow(near if near is not None and _encode_on_gpu(worker, coded) else None)
            for piece in coded:
                worker.compensate(piece.declared, self.feedback(piece.offset))

    def _follow(self, near: torch.Tensor | None) -> None:
        """The buffers move to the device of `near`, or to this host's memory."""
        device = None if near is None else devices.of(near)
        if device is not self._device:
            home = torch.empty(0, device="cpu") if near is None else near.data
            self._buffers = {
                kind: home.new_zeros(self.total, dtype=torch.float32).copy_(buffer)
                for kind, buffer in self._buffers.items()
            }
            self._device = device

    def detach(self, worker: Worker, pieces: Sequence[HasPlace]) -> None:
        """The buffers may be freed."""
        for piece in pieces:
            if piece.declared.spec.codec and self.keeps:
                worker.compensate(piece.declared, None)

    def feedback(self, offset: int) -> Feedback:
        """What is fed back into gradients that are encoded from byte `offset` on."""
        way, device = self.way, self._device
        address = torch.Tensor.data_ptr if device is None else device.address
        addresses = {kind: address(buffer) + offset for kind, buffer in self._buffers.items()}
        residual, momentum = addresses.get(RESIDUAL, 0), addresses.get(MOMENTUM, 0)
        return Feedback(residual, momentum, way.momentum, way.nesterov, way.masked, on_gpu=device is not None)

    def rescale(self, slots: Sequence[Slot], rescaling: Rescaling) -> float:
        """Before a round: the residual in terms of the learning rates that its updates will be made with. Returns a
        factor for all of it that is left to who encodes, who reads it anyway."""
        self._factor = 1.0
        if RESIDUAL not in self._buffers:
            return 1.0
        factors = rescaling.factors(slots)
        if self.off and not self._owes:
            return 1.0
        if len(set(factors.values())) == 1 and not self.off:
            self._factor = factors[0]
            return self._factor
        for slot in slots:
            if factors[slot.index] != 1.0:
                self._views(slot)[RESIDUAL].mul_(factors[slot.index])
        return 1.0


def _encode_on_gpu(worker: object, pieces: Sequence[HasPlace]) -> bool:
    return isinstance(worker, UsesGpu) and all(worker.encodes_on_gpu(piece.declared) for piece in pieces)
