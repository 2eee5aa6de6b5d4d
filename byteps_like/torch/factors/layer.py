"""One Linear's weight that may travel as factors, and its factors on their way through a round."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from byteps_like.collectives.api import CallOptions, CollectiveOperation, Group, Keeper, Traffic
from byteps_like.dtypes import DType, Op
from byteps_like.torch.compression.policy import RAW
from byteps_like.torch.device.tensors import WIRE_DTYPES, tensor_over, wire_dtype
from byteps_like.torch.factors.capture import Captured, Rows, product
from byteps_like.torch.gradients.freed import FreedGradient
from byteps_like.torch.gradients.parts import RoundTerms
from byteps_like.worker.api import Worker

PRESENT, LEFT, DISCARDS = 1, 2, 4
"""Of a rank's word on a layer: it had a gradient; some of it did not go with the rest; it throws the round away."""

Word = tuple[int, int, int]
"""What a rank tells the others of a layer: rows that it had, their element type, flags."""

_ADVICE = (
    "with sufficient_factors only its factors are, from backward() to step(). Call optimizer.synchronize() before you"
    " read or change gradients, and then step() within `with optimizer.skip_synchronize():`"
)

_DTYPES = {code: dtype for dtype, code in WIRE_DTYPES.items()}


class FactorLayer:
    """A weight of M x N. `rows[r]` is what rank r has room for in this round, the same on all ranks.

    `left`: its gradient has left the bucket that it lies in else. Each rank's rows, [input | grad_output], are gathered
    when backward has made them, and every rank multiplies all of them. What a rank can't send so is left for the end of
    the round (see FactorSum).
    """

    def __init__(self, name: str, parameter: torch.nn.Parameter, worker: Worker, lane: Group) -> None:
        self.name, self.parameter, self.lane = name, parameter, lane
        self.captured = Captured(parameter)
        self.rows = (0,) * lane.size
        self.wire = parameter.dtype
        self.way, self.codec = RAW, ""
        """How its gradient travels in a bucket, and what encoded it there last."""
        self.left = False
        self.passes = 0
        self.touched = False
        """Whether backward has made a `p.grad` of it, too."""
        self.bound: torch.Tensor | None = None
        """Its `p.grad` since the last pass of this round: a FreedGradient, if there was none, by which it is seen when
        the gradient is cleared."""
        self._room_maker: RemovableHandle | None = None
        self.sum: FactorSum | None = None
        """Of the round under way, once it was sent."""
        self._worker = worker
        self._gathered = torch.empty(0, device="cpu")

    def leave(self, left: bool) -> None:
        """Between rounds: whether its gradient travels as factors. Else forwards keep none."""
        self.left = self.captured.captures = left
        if not left:
            self.unbind()

    def plan(self, rows: tuple[int, ...], codes: list[int]) -> None:
        """For the next round: what each rank has room for, and its element type on the wire."""
        self.rows = rows
        known = {_DTYPES[DType(code)] for code in codes}
        self.wire = known.pop() if len(known) == 1 else self.parameter.dtype

    # A round

    @property
    def ready(self) -> bool:
        """Whether it has been sent in this round."""
        return self.sum is not None

    def count(self) -> None:
        """A backward has come to the last use."""
        if self.passes and self.cleared():
            self.captured.drop()
            self.passes = 0
        self.captured.complete()
        self.passes += 1
        self._bind()

    def _bind(self) -> None:
        parameter = self.parameter
        if parameter.grad is None and parameter.requires_grad:
            parameter.grad = FreedGradient(parameter.detach(), self.name, _ADVICE)
            register: Any = parameter.register_hook
            self._room_maker = self._room_maker or register(partial(_make_room, weakref.ref(self)))
        self.bound = parameter.grad

    def unbind(self) -> None:
        """What stands in `p.grad` for no gradient goes. Idempotent."""
        if isinstance(self.parameter.grad, FreedGradient):
            self.parameter.grad = None
        if self._room_maker is not None:
            self._room_maker.remove()
            self._room_maker = None

    def make_room(self) -> None:
        """Autograd is about to add to `p.grad`."""
        if isinstance(self.parameter.grad, FreedGradient):
            self.bound = self.parameter.grad = torch.zeros_like(self.parameter)

    def accumulated(self) -> None:
        """Autograd has made, or added to, `p.grad`."""
        self.touched = True
        if not self.cleared():
            self.bound = self.parameter.grad

    def cleared(self) -> bool:
        """Whether `p.grad` is no longer what it was at the last pass, without having been accumulated into."""
        grad = self.parameter.grad
        return grad is not self.bound and (grad is None or grad.grad_fn is None)

    def changed(self) -> bool:
        """Whether somebody has put another tensor into `p.grad` since it was sent."""
        return self.parameter.grad is not None and self.parameter.grad is not self.bound

    def send(self, terms: RoundTerms, discard: bool = False) -> None:
        """All that this rank has, once a round; zeros if the round is thrown away."""
        if self.sum is not None:
            return
        if discard:
            self.captured.drop()
        rows = [] if discard else self.captured.take()
        gathered = self._room()
        first = sum(self.rows[: self.lane.rank])
        left = _pack(rows, gathered[first : first + self.rows[self.lane.rank]], self.parameter.shape[1])
        counts, options = [count * gathered.shape[1] for count in self.rows], CallOptions(traffic=Traffic.GRADIENT)
        source, target = gathered[first:].data_ptr(), gathered.data_ptr()
        flight = self.lane.all_gather(source, target, counts, wire_dtype(self.wire), options)
        flight.on_done(Keeper(gathered))
        self.sum = FactorSum(self, gathered, flight, terms, sum(len(x) for x, _ in rows), left)

    def _room(self) -> torch.Tensor:
        """For the rows of all ranks: where they were gathered in the round before, if these are as many."""
        total, width = sum(self.rows), sum(self.parameter.shape)
        if self._gathered.shape != (total, width) or self._gathered.dtype is not self.wire:
            memory = self._worker.empty_shared(max(total * width * self.wire.itemsize, 16))
            self._gathered = tensor_over(memory, self.wire)[: total * width].view(total, width)
        return self._gathered

    def word(self, discard: bool) -> Word:
        """This rank's, after `send`."""
        grad = self.parameter.grad is not None
        code, flags = int(wire_dtype(self.captured.dtype)), PRESENT * grad | DISCARDS * discard
        if self.sum is None:
            # Forwards are counted twice by checkpoints, and where no backward follows; for want of better.
            return self.captured.count_forward_rows(), code, flags
        left = self.sum.rest is not None
        return self.sum.seen, code, flags | PRESENT * (left or self.passes > 0) | LEFT * left

    def reset(self) -> None:
        """A new round begins. What a backward that is under way has kept since this one was sent is of the new one."""
        if self.sum is None:
            self.captured.forget()
        self.unbind()
        self.sum = self.bound = None
        self.passes, self.touched = 0, False


def _make_room(layer: weakref.ref[FactorLayer], grad: torch.Tensor) -> None:
    del grad
    found = layer()
    if found is not None:
        with torch.no_grad():
            found.make_room()


def _pack(rows: list[Rows], room: torch.Tensor, inputs: int) -> list[Rows]:
    """Brings rows of the right type into `room`, as many as it takes, and zeros into the rest; returns the others."""
    at, left = 0, []
    for x, grad in rows:
        fits = min(len(x), len(room) - at) if x.dtype is room.dtype else 0
        room[at : at + fits, :inputs] = x[:fits]
        room[at : at + fits, inputs:] = grad[:fits]
        at += fits
        if fits < len(x):
            left.append((x[fits:], grad[fits:]))
    room[at:].zero_()
    return left


@dataclass
class FactorSum:
    """One weight's factors in flight.

    What a rank could not send so (more rows than it has room for, another element type, a gradient that came otherwise,
    what a codec has left out of gradients before) is `rest`, a matrix. If any rank has one, all reduce them.
    """

    layer: FactorLayer
    gathered: torch.Tensor
    flight: CollectiveOperation
    terms: RoundTerms
    seen: int
    """Rows that this rank had."""
    left: list[Rows]
    index: int = 0
    """Among those of its round."""
    rest: torch.Tensor | None = None
    old: torch.Tensor | None = None
    """What `p.grad` was before, if backward has not added to it: the same on all ranks."""
    total: torch.Tensor | None = None
    """The sum of what is left, once it is reduced."""

    @property
    def name(self) -> str:
        """See Place."""
        return self.layer.name

    @property
    def parameter(self) -> torch.nn.Parameter:
        """See Place."""
        return self.layer.parameter

    @property
    def parts(self) -> range:
        """Its only one, after that of the words."""
        return range(self.index + 1, self.index + 2)

    def close(self, owed: torch.Tensor | None) -> None:
        """The round ends: makes `rest` of what was left. `owed`: what a codec has left out, in the sum's units."""
        grad, self.old = self.parameter.grad, self.parameter.grad
        if not self.layer.touched:
            grad = None
        if not self.left and grad is None and owed is None:
            return
        rest, self.left = product(self.parameter, self.left), []
        if grad is not None:
            rest, self.old = rest.add_(_dense(grad)), None
        rest.mul_(self.terms.before)
        self.rest = rest if owed is None else rest.add_(owed.to(rest.dtype))

    def reduce_rest(self) -> CollectiveOperation:
        """Starts the sum of what was left on any rank. All ranks call it, or none, on any thread."""
        self.total = torch.zeros_like(self.parameter) if self.rest is None else self.rest
        if self.old is not None:
            self.total.add_(_dense(self.old), alpha=self.terms.before)
        address, code = self.total.data_ptr(), wire_dtype(self.total.dtype)
        options = CallOptions(traffic=Traffic.GRADIENT)
        flight = self.layer.lane.all_reduce(address, address, self.total.numel(), code, self.terms.op, options)
        flight.on_done(Keeper(self.total))
        return flight

    def land(self) -> None:
        """Makes the reduced gradient `p.grad`."""
        terms, inputs = self.terms, self.parameter.shape[1]
        rows = self.gathered.to(self.parameter.dtype)
        total = rows[:, inputs:].T @ rows[:, :inputs]
        total.mul_(terms.before * terms.after / (terms.size if terms.op is Op.AVERAGE else 1))
        old = self.parameter.grad
        if self.total is not None:
            old = self.total.mul_(terms.after)
        self.parameter.grad = total if old is None else total.add_(old)


def _dense(grad: torch.Tensor) -> torch.Tensor:
    return grad.detach() if grad.layout is torch.strided else grad.detach().to_dense()
