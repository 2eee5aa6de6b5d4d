"""PowerSGD: gradients as matrices of low rank, whose factors are reduced. Vogels et al., NeurIPS 2019, algorithm 1.

With M (n x m) the gradient and what was left of it, Q (m x r) the factor of the round before:
P = mean of M Q, orthonormal; Q = mean of M^T P; the gradient is P Q^T. Both means are plain sums, on any route.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from functools import partial

import torch

from byteps_like.compression.low_rank import multiply_factors, orthonormalize
from byteps_like.torch.compression.policy import RAW, Compress
from byteps_like.torch.device.inflight import park
from byteps_like.torch.gradients.arena import Arena
from byteps_like.torch.gradients.bucket import Departed
from byteps_like.torch.gradients.coding import RESIDUAL, Memory
from byteps_like.torch.gradients.parts import Named, Scaling
from byteps_like.torch.gradients.relay import Promised, Relay
from byteps_like.torch.gradients.rescaling import Rescaling
from byteps_like.torch.gradients.slot import Slot
from byteps_like.torch.job.routes import Route
from byteps_like.worker.api import Handle

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
        self.own: torch.Tensor | None = None
        """M^T P: what this rank contributes to Q; None if there is no gradient here."""

    def _fresh(self) -> torch.Tensor:
        generator = torch.Generator().manual_seed(zlib.crc32(self.name.encode()))
        return torch.randn(self.columns, self._rank, generator=generator, dtype=torch.float64, device="cpu").to(
            self.wide
        )

    def make_matrix(self, factor: float) -> None:
        """Makes `matrix` of `p.grad`, and of what was left, times `factor`."""
        grad = self.parameter.grad
        self.ready, self.bound, self.matrix = True, grad, None
        if grad is None:  # what is left waits for one, in terms of the rate of that round
            if self.residual is not None and factor != 1.0:
                self.residual.mul_(factor)
            return
        self.version = grad._version
        dense = grad.detach() if grad.layout is torch.strided else grad.detach().to_dense()
        self.matrix = dense.reshape(self.rows, self.columns).to(self.wide)
        if self.residual is not None:
            self.matrix = self.residual.mul_(factor).add_(self.matrix)

    def take_basis(self, mean: torch.Tensor) -> None:
        """Takes the mean of M Q, and makes M^T P."""
        self.basis = mean.clone(memory_format=torch.contiguous_format)
        if bool(mean.isfinite().all()):
            orthonormalize(self.basis.numpy())
        self.own = None if self.matrix is None else self.matrix.T @ self.basis

    def take_factor(self, mean: torch.Tensor) -> None:
        """Takes the mean of M^T P: the gradient is here."""
        grad = self.parameter.grad
        if grad is None:
            self.parameter.grad = grad = torch.empty_like(self.parameter)
        product = torch.empty(self.rows, self.columns, dtype=self.wide, device="cpu")
        multiply_factors(self.basis.numpy(), mean.contiguous().numpy(), product.numpy())
        grad.detach().copy_(product.reshape(self.parameter.shape))
        if self.residual is not None and self.own is not None:
            self.residual.addmm_(self.basis, self.own.T, alpha=-1.0)
            if not bool(self.own.isfinite().all()):
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

    def let_go(self) -> None:
        """The round is over."""
        self.matrix = self.own = None

    def forget(self) -> None:
        """As at the beginning."""
        self.factor = self._fresh()
        if self.residual is not None:
            self.residual.zero_()


class LowRankArena:
    """The gradients of `named` by two factors each; see Arena for the calls. Each factor's arena holds all of its kind.

    P's are sent from within backward. In a round that waits, Q's are sent when all P's have landed. In one that has
    departed, `relay` sends each partition of Q's when the P's that it is made of have landed. On the wire, per
    gradient, 4 r (n + m) bytes.
    """

    def __init__(
        self,
        route: Route,
        label: str,
        named: Sequence[Named],
        way: Compress,
        scaling: Scaling,
        relay: Relay,
        crossing: bool = False,
    ) -> None:
        assert way.low_rank is not None
        rank, feedback = way.low_rank.rank, bool(way.feedback)
        self.label = label
        self.slots = [
            MatrixSlot(name, parameter, index, rank, feedback) for index, (name, parameter) in enumerate(named)
        ]
        self.remembers = True
        self._relay = relay
        self.rescaling = Rescaling()
        self._factors: dict[int, float] | None = None
        self._sent = self._discarded = False
        """Whether a round is, and whether this rank throws it away."""
        self._promised: list[Promised] = []
        """Of the round that has departed: its partitions of Q's."""
        bases = [(slot.name, torch.empty(slot.rows, rank, dtype=slot.wide, device="cpu")) for slot in self.slots]
        factors = [(slot.name, torch.empty(slot.columns, rank, dtype=slot.wide, device="cpu")) for slot in self.slots]
        self._bases = Arena(route, f"{label}.p", bases, RAW, scaling, crossing)
        self._means = Arena(route, f"{label}.q", factors, RAW, scaling, crossing)
        self.parts = [self._bases, self._means]
        """What it is made of."""

    @property
    def complete(self) -> bool:
        """See Arena."""
        return self._bases.complete and self._means.complete

    @property
    def partitions(self) -> int:
        """Of the longer of its arenas."""
        return max(part.partitions for part in self.parts)

    @property
    def longest(self) -> int:
        """See Arena."""
        return self._bases.longest

    @longest.setter
    def longest(self, partitions: int) -> None:
        for part in self.parts:
            part.longest = partitions

    @property
    def settled(self) -> bool:
        """See Arena."""
        return all(part.settled for part in self.parts)

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
        for slot in self.slots:
            slot.reset()
        self._factors = None
        self._bases.reset()
        if not self._promised:
            self._means.reset()
            self._let_go()

    def _let_go(self) -> None:
        discarded = self._sent and (self._discarded or self._bases.discarded)
        self._sent = self._discarded = False
        for part in self.parts:
            for inner in part.slots:
                inner.parameter.grad = None
        for slot in self.slots:
            slot.let_go()
            if discarded:
                slot.forget()

    def reached(self, slot: Slot) -> None:
        """See Arena."""
        for part in self.parts:
            part.reached(part.slots[slot.index])

    def ready(self, slot: Slot) -> None:
        """See Arena."""
        self.reached(slot)
        with torch.no_grad():
            self._stage(self.slots[slot.index])
        self._bases.ready(self._bases.slots[slot.index])

    def _stage(self, slot: MatrixSlot) -> None:
        if self._factors is None:
            self._factors = self.rescaling.factors(self.slots)
        slot.make_matrix(self._factors[slot.index])
        if slot.matrix is not None:
            self._bases.slots[slot.index].parameter.grad = slot.matrix @ slot.factor

    def finish(self, discard: bool) -> None:
        """See Arena."""
        self._sent, self._discarded = True, discard
        for slot in self.slots:
            if not slot.ready and not discard:
                self._stage(slot)
        self._bases.finish(discard)

    def wait(self) -> None:
        """Until the P's have landed."""
        self._bases.wait()

    def check_agreed(self) -> None:
        """See Arena. Of a round that has departed, which is asked when its Q's have landed, they tell: they were only
        sent because the P's had told so."""
        (self._means if self._promised else self._bases).check_agreed()

    def land(self) -> None:
        """Makes the P's orthonormal, has the Q's reduced, and makes the gradients of both. Blocks for a round."""
        present = self._bases.present()
        for slot in self.slots:
            self._turn(slot, present[slot.index])
        self._means.finish(discard=False)
        self._means.wait()
        self._means.check_agreed()
        present = self.present()
        for slot in self.slots:
            self.land_one(slot, present[slot.index])

    def _turn(self, slot: MatrixSlot, present: bool) -> None:
        """P of `slot` has landed: Q is sent, with what else its partition has been waiting for."""
        basis, mean = self._bases.slots[slot.index], self._means.slots[slot.index]
        self._bases.land_one(basis, present)
        if basis.parameter.grad is not None:
            slot.take_basis(basis.parameter.grad)
            mean.parameter.grad = slot.own
        self._means.ready(mean)

    def land_one(self, slot: MatrixSlot, present: bool) -> None:
        """Q of `slot` has landed: its gradient is handed over."""
        mean = self._means.slots[slot.index]
        self._means.land_one(mean, present)
        if mean.parameter.grad is not None:
            slot.take_factor(mean.parameter.grad)

    def sparse(self) -> list[Slot]:
        """None: they are made dense."""
        return []

    def settle(self) -> None:
        """See Arena."""
        for part in self.parts:
            part.settle()

    def abandon(self) -> None:
        """See Arena. What has departed goes on."""
        park(list(self._promised), self, self._abandon)

    def _abandon(self) -> None:
        for part in self.parts:
            part.abandon()

    def depart(self) -> Departed:
        """See Arena. `relay` has the Q's sent."""
        first = self._bases.depart()
        self._promised = [Promised() for _ in range(self._means.partitions)]
        for slot, mean in zip(self.slots, self._means.slots, strict=True):
            slot.parts = mean.parts
        bases = {part: handle for run, handle in first.flown for part in run}
        self._relay.put(partial(self._pass_on, bases, self._promised))
        return Departed(self, [(range(part, part + 1), promise) for part, promise in enumerate(self._promised)])

    def _pass_on(self, bases: Mapping[int, Handle], promised: Sequence[Promised]) -> None:
        """On the relay's thread: sends the Q's as the P's of `bases`, by partitions, land; most urgent first."""
        try:
            with torch.no_grad():
                _wait_for(bases, self._bases.commits)
                self._bases.check_agreed()
                present = self._bases.present()
                self._means.foretell([slot.matrix is not None for slot in self.slots])
                for slot in sorted(self.slots, key=self._place_of, reverse=True):
                    _wait_for(bases, self._bases.slots[slot.index].parts)
                    self._turn(slot, present[slot.index])
                    for run, handle in self._means.hand_over():
                        for part in run:
                            promised[part].keep(handle)
        except Exception as error:  # noqa: BLE001 - raised by who waits for them
            for run, handle in self._means.hand_over():
                for part in run:
                    promised[part].keep(handle, error)
            for promise in promised:
                promise.fail(error)

    def _place_of(self, slot: MatrixSlot) -> int:
        return self._means.slots[slot.index].parts.start

    # Of the round that has departed: see Landing. Its partitions are those of the Q's.

    @property
    def data(self) -> LowRankArena:
        """All that it reads and writes."""
        return self

    @property
    def commits(self) -> range:
        """See Landing."""
        return self._means.commits

    def priority(self, run: range) -> int:
        """See Landing."""
        return self._means.priority(run)

    def present(self) -> list[bool]:
        """See Landing."""
        return self._means.present()

    def landed(self) -> None:
        """See Arena."""
        if self._promised:
            self._promised = []
            self._bases.landed()
            self._means.reset()
            self._let_go()

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


def _wait_for(handles: Mapping[int, Handle], parts: range) -> None:
    for part in parts:
        handles[part].wait()
