"""One Linear's weight on its way through a round, as factors or as the matrix."""

from __future__ import annotations

from dataclasses import replace

import torch

from byteps_like.collectives.api import CallOptions, CollectiveOperation, Keeper, Traffic
from byteps_like.dtypes import DType, Op
from byteps_like.torch.device.inflight import park
from byteps_like.torch.device.tensors import WIRE_DTYPES, tensor_over, wire_dtype
from byteps_like.torch.factors.capture import Captured
from byteps_like.torch.factors.choice import FactorExchange
from byteps_like.torch.gradients.parts import Scaling, retire
from byteps_like.torch.job.routes import Request, Route
from byteps_like.worker.api import Handle, TensorSpec

PRESENT, LEFT, DISCARDS = 1, 2, 4
"""Of a rank's word on a layer: it had a gradient; some of it did not go with the rest; it throws the round away."""

_DTYPES = {code: dtype for dtype, code in WIRE_DTYPES.items()}


class FactorLayer:
    """A weight of M x N. `rows[r]` is what rank r has room for in this round, the same on all ranks.

    As factors: each rank's rows, [input | grad_output], are gathered, and every rank multiplies all of them. What a
    rank can't send so (more rows than room, another element type, a gradient that came otherwise) is left, and the
    matrices of what was left are reduced at the end of the round. As a matrix: reduced when backward has made it.
    """

    def __init__(self, name: str, parameter: torch.nn.Parameter, route: Route, label: str, scaling: Scaling) -> None:
        self.name, self.parameter = name, parameter
        self.captured = Captured(parameter)
        self.lane = route.worker.group(f"{label}.{name}/factors")
        self.rows = (0,) * self.lane.size
        self.wire = parameter.dtype
        self.by_factors = False
        self.passes = self.matrix_passes = 0
        self._scaling, self._terms = scaling, scaling.terms(1)
        shape, code = tuple(parameter.shape), wire_dtype(parameter.dtype)
        self._specs = [TensorSpec(f"{label}.{name}{kind}", code, shape) for kind in ("", ".left")]
        self._cuts = 0
        self.route = self._home = route  # rows stay at home: they go among the workers in any case
        self._declared, self._left_declared = route.declare(self._specs)
        self._gathered = torch.empty(0, device="cpu")
        self._sent: CollectiveOperation | Handle | None = None
        self._matrix: torch.Tensor | None = None
        self._version = 0

    @property
    def ready(self) -> bool:
        """Whether it has been sent in this round."""
        return self._sent is not None

    def exchange(self, rows: tuple[int, ...]) -> FactorExchange:
        """What `by_factors` is chosen from."""
        outputs, inputs = self.parameter.shape
        size, item = self.parameter.element_size(), self.wire.itemsize
        return FactorExchange(outputs, inputs, rows, self.route.name, size, item)

    # One round

    def send(self, discard: bool = False) -> None:
        """All that this rank has, once a round; zeros if the round is thrown away."""
        if self._sent is None:
            if discard:
                self.captured.leave([])
            self._terms = self._scaling.terms(self.route.worker.size)
            self._sent = self._send_factors() if self.by_factors else self._send_matrix(discard)

    def _send_factors(self) -> CollectiveOperation:
        outputs, inputs = self.parameter.shape
        width, room = outputs + inputs, self.rows[self.lane.rank]
        if self._gathered.shape != (sum(self.rows), width) or self._gathered.dtype is not self.wire:
            memory = self._home.worker.empty_shared(max(sum(self.rows) * width * self.wire.itemsize, 16))
            flat = tensor_over(memory, self.wire)[: sum(self.rows) * width]
            self._gathered = flat.view(sum(self.rows), width)
        first = sum(self.rows[: self.lane.rank])
        self._pack(self._gathered[first : first + room])
        source, target = self._gathered[first:].data_ptr(), self._gathered.data_ptr()
        counts, options = [rows * width for rows in self.rows], CallOptions(traffic=Traffic.GRADIENT)
        flight = self.lane.all_gather(source, target, counts, wire_dtype(self.wire), options)
        flight.on_done(Keeper(self._gathered))
        return flight

    def _pack(self, room: torch.Tensor) -> None:
        """Takes rows of the right type, as many as there is room for; the rest of the room is zeros."""
        inputs, at = self.parameter.shape[1], 0
        left = []
        for x, grad in self.captured.rows:
            fits = min(len(x), len(room) - at) if x.dtype is self.wire else 0
            room[at : at + fits, :inputs] = x[:fits]
            room[at : at + fits, inputs:] = grad[:fits]
            at += fits
            if fits < len(x):
                left.append((x[fits:], grad[fits:]))
        room[at:].zero_()
        self.captured.leave(left)

    def _send_matrix(self, discard: bool) -> Handle:
        grad = None if discard else self.parameter.grad
        matrix = torch.zeros_like(self.parameter) if grad is None else grad.detach()
        if self.captured.rows:
            matrix = matrix + self._product(self.captured.rows)
            self.captured.leave([])
        if not matrix.is_contiguous():
            matrix = matrix.contiguous()
        before = self._terms.before
        self._matrix = matrix if before == 1.0 else matrix.mul_(before)
        self._version = matrix._version
        return self.route.push_pull(self._declared, matrix.data_ptr(), self._terms.op, Request(priority=0))

    def _product(self, rows: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        """The sum of their outer products, in the weight's type."""
        total = torch.zeros_like(self.parameter)
        for x, grad in rows:
            total.addmm_(grad.to(total.dtype).T, x.to(total.dtype))
        return total

    def word(self, discard: bool) -> tuple[int, int, int]:
        """What this rank tells the others of the layer after `send`: rows that it had, their type, flags."""
        grad = self.parameter.grad is not None
        left = bool(self.captured.rows) or (self.by_factors and self.matrix_passes > 0)
        flags = PRESENT * (grad or self.passes > 0 or left) | LEFT * left | DISCARDS * discard
        # Forwards are counted twice by checkpoints, and where no backward follows; for want of better.
        seen = self.captured.kept_rows if self.by_factors else self.captured.forward_rows
        return seen, int(wire_dtype(self.captured.dtype)), flags

    def wait(self) -> None:
        """Blocks until what was sent has landed."""
        if self._sent is not None:
            self._sent.wait()

    def reduce_left(self) -> torch.Tensor:
        """The reduced sum of what was left on any rank. Blocks; all ranks call it, or none."""
        left = self._product(self.captured.rows)
        if self.by_factors and self.parameter.grad is not None:
            left += self.parameter.grad
        left.mul_(self._terms.before)
        self.route.push_pull(self._left_declared, left.data_ptr(), self._terms.op, Request(priority=0)).wait()
        return left.mul_(self._terms.after)

    def changed(self) -> bool:
        """Whether somebody has written to a matrix on its way."""
        return self._matrix is not None and self._matrix._version != self._version

    def land(self, left: torch.Tensor | None) -> None:
        """Makes the reduced gradient `p.grad`; `left` is what was left, reduced."""
        terms = self._terms
        old = self.parameter.grad
        if self.by_factors:
            inputs = self.parameter.shape[1]
            rows = self._gathered.to(self.parameter.dtype)
            total = rows[:, inputs:].T @ rows[:, :inputs]
            total.mul_(terms.before * terms.after / (terms.size if terms.op is Op.AVERAGE else 1))
            # What is left includes what was there, which is the same on all ranks.
            old = left if left is not None else old
        else:
            assert self._matrix is not None
            total, old = self._matrix, left
            if terms.after != 1.0:
                total.mul_(terms.after)
        self.parameter.grad = total if old is None else total.add_(old)

    def reset(self) -> None:
        """A new round begins. A matrix still on its way keeps its memory until it has landed."""
        if self._matrix is not None and self._sent is not None and not self._sent.done():
            park([self._sent], self._matrix)
        self._sent = self._matrix = None
        self.passes = self.matrix_passes = 0
        self.captured.forget()

    def recut(self, route: Route, partition_bytes: int) -> None:
        """Between rounds: matrices go by `route` from now on, in partitions of that size. See Bucket.recut."""
        before, left = self.route.worker, [self._declared, self._left_declared]
        self._cuts += 1
        specs = [replace(it, name=f"{it.name}/{self._cuts}", partition_bytes=partition_bytes) for it in self._specs]
        self.route = route
        self._declared, self._left_declared = route.declare(specs)
        retire(before, left)

    def plan(self, rows: tuple[int, ...], codes: list[int]) -> None:
        """For the next round: what each rank has room for, and its element type on the wire."""
        self.rows = rows
        known = {_DTYPES[DType(code)] for code in codes}
        self.wire = known.pop() if len(known) == 1 else self.parameter.dtype

    def choose(self, by_factors: bool) -> None:
        """How it goes in the next round; as a matrix, no factors are kept."""
        self.by_factors = self.captured.captures = by_factors
