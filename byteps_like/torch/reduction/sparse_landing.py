"""The rows of a round in flight: each gradient lands by itself, for a round that waits as for one that departs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from byteps_like.errors import BytePSLikeError
from byteps_like.torch.calls.handles import poll, synchronize, table


class RowSum:
    """The sum of one gradient's rows: a Handle, which keeps the result that it has waited for."""

    def __init__(self, number: int) -> None:
        self._number, self._over = number, False
        self.total: torch.Tensor | None = None
        """Coalesced; None until `wait` has returned."""

    def done(self) -> bool:
        """See Handle."""
        return self._over or poll(self._number)

    def wait(self, timeout: float | None = None) -> None:
        """See Handle. Has no deadline of its own."""
        del timeout
        if not self._over:
            self._over = True
            self.total = synchronize(self._number)

    def give_up(self, error: BytePSLikeError) -> None:
        """See Handle."""
        if not self._over:
            table.get(self._number).handle.give_up(error)


@dataclass(frozen=True)
class SparseSlot:
    """One gradient of a round by rows. `stays_dense`: what lands is dense, too."""

    name: str
    parameter: torch.Tensor
    index: int
    stays_dense: bool
    sum: RowSum

    @property
    def parts(self) -> range:
        """Its only one."""
        return range(self.index, self.index + 1)

    def land(self) -> None:
        """Makes the sum `p.grad`; one that no rank has stays None."""
        found, grad = self.sum.total, self.parameter.grad
        assert found is not None
        if grad is None and not found._nnz():
            return
        total = found.to(self.parameter.device)
        if not self.stays_dense or grad is None or grad.is_sparse:
            self.parameter.grad = total.to_dense() if self.stays_dense else total
        else:
            grad.zero_().index_copy_(0, total.indices()[0], total.values())


class SparseLanding:
    """Gradients of a round by rows that are handed over one by one: a Landing without control elements, in which each
    gradient is a partition."""

    def __init__(self, slots: Sequence[SparseSlot]) -> None:
        self.slots = slots
        self.data = None
        """Sums keep their own memory."""
        self.commits = range(0)

    def priority(self, run: range) -> int:
        """See Landing. None: they are sent when all the rest is on its way."""
        del run
        return 0

    def check_agreed(self) -> None:
        """Nothing: the buckets of the round tell."""

    def present(self) -> list[bool]:
        """See Landing. Whether there are rows is known when they are here."""
        return [True] * len(self.slots)

    def sparse(self) -> Sequence[SparseSlot]:
        """None: they don't land as dense ones."""
        return ()

    def land_one(self, slot: SparseSlot, present: bool) -> None:
        """See Landing."""
        del present
        slot.land()
