"""PowerSGD: gradients as matrices of low rank, whose factors are reduced. Vogels et al., NeurIPS 2019, algorithm 1.

With M (n x m) the gradient and what was left of it, Q (m x r) the factor of the round before:
P = mean of M Q, orthonormal; Q = mean of M^T P; the gradient is P Q^T. Both means are plain sums, on any route.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

import torch

from byteps_like.compression.low_rank import multiply_factors, orthonormalize
from byteps_like.torch.compression.policy import RAW, Compress
from byteps_like.torch.gradients.arena import Arena
from byteps_like.torch.gradients.bucket import Departed
from byteps_like.torch.gradients.coding import RESIDUAL, Memory
from byteps_like.torch.gradients.parts import Named, Scaling
from byteps_like.torch.gradients.rescaling import Rates, Rescaling
from byteps_like.torch.gradients.slot import Slot
from byteps_like.torch.job.routes import Route

FACTOR = "factor"
"""Q: a kind of memory, the same on all ranks."""


class MatrixSlot(Slot):
    """One parameter's gradient, as a matrix of its first dimension and all others."""

    def __init__(self, name: str, parameter: torch.Tensor, index: int, rank: int, feedback: bool) -> None:
        self.wide = torch.promote_types(parameter.dtype, torch.float32)
        super().__init__(name, parameter, index, self.wide)
        self.is_view = False
        self.rows, self.columns = parameter.shape[0], parameter.shape[1:].numel()
        self._rank = rank
        self.residual = torch.zeros(self.rows, self.columns, dtype=self.wide, device="cpu") if feedback else None
        self.factor = self._fresh()
        self.matrix: torch.Tensor | None = None
        """M, while a round is under way; None if there is no gradient here."""
        self.basis = torch.empty(0, device="cpu")
        """P, once it has landed."""

    def _fresh(self) -> torch.Tensor:
        generator = torch.Generator().manual_seed(zlib.crc32(self.name.encode()))
        return torch.randn(self.columns, self._rank, generator=generator, dtype=torch.float64, device="cpu").to(
            self.wide
        )

    def stage(self, factor: float) -> None:
        """Makes `matrix` of `p.grad`, and of what was left, times `factor`."""
        grad = self.parameter.grad
        self.ready, self.bound, self.matrix = True, grad, None
        if grad is None:
            return
        self._version = grad._version
        dense = grad.detach() if grad.layout is torch.strided else grad.detach().to_dense()
        self.matrix = dense.reshape(self.rows, self.columns).to(self.wide)
        if self.residual is not None:
            self.matrix = self.residual.mul_(factor).add_(self.matrix)

    def take_basis(self, mean: torch.Tensor) -> torch.Tensor | None:
        """Takes the mean of M Q; this rank's M^T P, if it has a gradient."""
        self.basis = mean.clone(memory_format=torch.contiguous_format)
        if bool(mean.isfinite().all()):
            orthonormalize(self.basis.numpy())
        return None if self.matrix is None else self.matrix.T @ self.basis

    def take_factor(self, own: torch.Tensor | None, mean: torch.Tensor) -> None:
        """Takes the mean of M^T P: the gradient is here. `own`: what this rank has contributed to it."""
        grad = self.parameter.grad
        if grad is None:
            self.parameter.grad = grad = torch.empty_like(self.parameter)
        product = torch.empty(self.rows, self.columns, dtype=self.wide, device="cpu")
        multiply_factors(self.basis.numpy(), mean.contiguous().numpy(), product.numpy())
        grad.detach().copy_(product.reshape(self.parameter.shape))
        if self.residual is not None and own is not None:
            self.residual.addmm_(self.basis, own.T, alpha=-1.0)
            if not bool(own.isfinite().all()):
                self.residual.zero_()
        # A direction in which there was nothing would stay empty for ever.
        norms = mean.norm(dim=0)
        self.factor = torch.where(norms.isfinite() & (norms > 0.0), mean, self._fresh())

    def memory(self) -> Memory:
        """What is remembered, itself."""
        kept = {FACTOR: self.factor}
        return kept if self.residual is None else {**kept, RESIDUAL: self.residual.view(self.parameter.shape)}

    def remember(self, memory: Mapping[str, torch.Tensor]) -> None:
        """Takes what is in `memory` and has the right shape."""
        for kind, own in self.memory().items():
            if kind in memory and memory[kind].shape == own.shape:
                own.copy_(memory[kind])

    def forget(self) -> None:
        """As at the beginning."""
        self.factor = self._fresh()
        if self.residual is not None:
            self.residual.zero_()


class LowRankArena:
    """The gradients of `named` by two factors each; see Arena for the calls. Each factor's arena holds all of its kind.

    P's are sent from within backward; Q's when all P's have landed. On the wire, per gradient, 4 r (n + m) bytes.
    """

    def __init__(self, route: Route, label: str, named: Sequence[Named], way: Compress, scaling: Scaling) -> None:
        assert way.low_rank is not None
        rank, feedback = way.low_rank.rank, bool(way.feedback)
        self.label = label
        self.slots = [
            MatrixSlot(name, parameter, index, rank, feedback) for index, (name, parameter) in enumerate(named)
        ]
        self.rates: Rates | None = None
        self.longest, self.settled, self.remembers = 0, False, True
        self._rescaling = Rescaling()
        self._factors: dict[int, float] | None = None
        self._discarded = False
        bases = [(slot.name, torch.empty(slot.rows, rank, dtype=slot.wide, device="cpu")) for slot in self.slots]
        factors = [(slot.name, torch.empty(slot.columns, rank, dtype=slot.wide, device="cpu")) for slot in self.slots]
        self._bases = Arena(route, f"{label}.p", bases, RAW, scaling)
        self._means = Arena(route, f"{label}.q", factors, RAW, scaling)
        self.parts = [self._bases, self._means]
        """What it is made of."""

    @property
    def complete(self) -> bool:
        """See Arena."""
        return self._bases.complete and self._means.complete

    @property
    def partitions(self) -> int:
        """See Arena."""
        return self._bases.partitions + self._means.partitions

    def recut(self, route: Route, partition_bytes: int) -> None:
        """See Arena."""
        for part in self.parts:
            part.recut(route, partition_bytes)

    coding = None
    windows: tuple[range, ...] = ()
    codec, is_coded = "", False

    def recode(self, rounds: int) -> None:
        """Nothing: there is no warm-up."""

    def switch(self, coded: bool, rounds: int) -> None:
        """Nothing: it is no codec that could be left out."""

    def reset(self) -> None:
        """See Arena."""
        for part in self.parts:
            part.reset()
            for inner in part.slots:
                inner.parameter.grad = None
        for slot in self.slots:
            slot.reset()
            slot.matrix = None
            if self._discarded:
                slot.forget()
        self._factors, self._discarded = None, False

    def reached(self, slot: Slot) -> None:
        """See Arena."""
        self._bases.reached(self._bases.slots[slot.index])

    def ready(self, slot: Slot) -> None:
        """See Arena."""
        self._stage(self.slots[slot.index])
        self._bases.ready(self._bases.slots[slot.index])

    def _stage(self, slot: MatrixSlot) -> None:
        if self._factors is None:
            self._factors = {} if self.rates is None else self._rescaling.factors(self.slots, self.rates)
        slot.stage(self._factors.get(slot.index, 1.0))
        if slot.matrix is not None:
            self._bases.slots[slot.index].parameter.grad = slot.matrix @ slot.factor

    def finish(self, discard: bool) -> None:
        """See Arena."""
        self._discarded = discard
        for slot in self.slots:
            if not slot.ready and not discard:
                self._stage(slot)
        self._bases.finish(discard)

    def wait(self) -> None:
        """Until the P's have landed."""
        self._bases.wait()

    def check_agreed(self) -> None:
        """See Arena."""
        self._bases.check_agreed()

    def land(self) -> None:
        """Makes the P's orthonormal, has the Q's reduced, and makes the gradients of both. Blocks for a round."""
        self._bases.land()
        own: list[torch.Tensor | None] = []
        for slot, basis, mean in zip(self.slots, self._bases.slots, self._means.slots, strict=True):
            landed = basis.parameter.grad
            own.append(None if landed is None else slot.take_basis(landed))
            if own[-1] is not None:
                mean.parameter.grad = own[-1].clone()
            self._means.ready(mean)
        self._means.finish(discard=False)
        self._means.wait()
        self._means.check_agreed()
        self._means.land()
        for slot, sent, mean in zip(self.slots, own, self._means.slots, strict=True):
            if mean.parameter.grad is not None:
                slot.take_factor(sent, mean.parameter.grad)

    def sparse(self) -> list[Slot]:
        """None: they are made dense."""
        return []

    def settle(self) -> None:
        """See Arena."""
        for part in self.parts:
            part.settle()

    def abandon(self) -> None:
        """See Arena."""
        for part in self.parts:
            part.abandon()

    def depart(self) -> Departed:
        """Never called, as it is never `settled`: the second round waits for the first."""
        raise NotImplementedError

    def landed(self) -> None:
        """See Arena."""

    def calm_down(self) -> None:
        """Nothing: it is in this host's memory."""

    def recall(self) -> dict[str, Memory]:
        """See Arena."""
        return {slot.name: {kind: value.clone() for kind, value in slot.memory().items()} for slot in self.slots}

    def remember(self, memories: Mapping[str, Memory]) -> None:
        """See Arena."""
        for slot in self.slots:
            slot.remember(memories.get(slot.name, {}))

    def forget(self) -> None:
        """See Arena."""
        for slot in self.slots:
            slot.forget()
