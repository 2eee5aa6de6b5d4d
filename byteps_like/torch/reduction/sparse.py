"""Gradients that are sparse, or touch few rows: each is summed by rows (see sparse), beside the arenas, at the end of a
round.

A gradient that came sparse stays here, and goes as a dense one while that is less. A dense one that is to go by rows
(compress.ByRows) comes here when few rows of its sum aren't zero, and goes back to its arena when most aren't: between
two rounds, by what has landed on all ranks alike. That is Parallax (Kim et al., EuroSys 2019).
"""

from __future__ import annotations

from collections.abc import Container

import torch

from byteps_like.dtypes import Op
from byteps_like.torch.calls.reductions import Reduction
from byteps_like.torch.device.inflight import call_all
from byteps_like.torch.gradients.bucket import Departed
from byteps_like.torch.gradients.parts import Named
from byteps_like.torch.job import runtime as _runtime
from byteps_like.torch.reduction.sparse_landing import RowSum, SparseLanding, SparseSlot
from byteps_like.torch.sparse.choice import RETURN
from byteps_like.torch.sparse.rows import Rows
from byteps_like.torch.sparse.sums import KIND, SparseHistory, forget, goes_dense, is_dense, start_sparse

_ROWS = 1  # sparse dimensions of an embedding's gradient


class SparseGradients:
    """Known are those that were sparse on any rank in a round before, or have come by rows, in one order on all."""

    def __init__(self, label: str, op: Op, process_set: object) -> None:
        self.partition_bytes = 0
        """Of those that go through servers, on all ranks alike; 0: of the job's size."""
        self._label, self._op, self._process_set = label, op, process_set
        self._twins = _runtime.current().of(SparseHistory).twins
        self._known: dict[int, Named] = {}
        self._stays_dense: set[int] = set()
        self._slots: list[SparseSlot] = []
        """Of the round under way."""

    def __contains__(self, parameter: torch.Tensor) -> bool:
        return id(parameter) in self._known

    def __len__(self) -> int:
        return len(self._known)

    def parameters(self) -> list[torch.Tensor]:
        """Those that are known."""
        return [parameter for _, parameter in self._known.values()]

    def names(self) -> list[str]:
        """What they are called."""
        return [name for name, _ in self._known.values()]

    def adopt(self, name: str, parameter: torch.Tensor) -> None:
        """Makes known a gradient that has landed as a dense one, and sparse again."""
        self._known[id(parameter)] = (name, parameter)
        sparsify(parameter)

    def take(self, name: str, parameter: torch.Tensor) -> None:
        """From the next round on its rows travel, if few of the dense gradient that has landed aren't zero."""
        grad = parameter.grad
        if grad is None or grad.is_sparse or _rows(grad).count > RETURN * len(grad):
            return
        self._known[id(parameter)] = (name, parameter)
        self._stays_dense.add(id(parameter))
        forget(self._full(name), self._process_set)
        parameter.grad = grad.clone()  # else it would keep its arena alive

    def leave(self) -> None:
        """Lets those go that are to stay dense, and went as a whole in the round that has landed."""
        for number in list(self._stays_dense):
            if is_dense(self._full(self._known[number][0]), self._process_set):
                del self._known[number]
                self._stays_dense.discard(number)

    @property
    def about_to_leave(self) -> bool:
        """Whether some of those that are to stay dense go as a whole in the round under way."""
        found = [self._known[number] for number in self._stays_dense]
        return any(goes_dense(_nothing(item).cpu(), self._full(name), self._process_set) for name, item in found)

    def _full(self, name: str) -> str:
        return f"{self._label}.sparse.{name}"

    def keep(self, parameters: Container[int]) -> None:
        """Forgets all but those of these ids, and what they went to servers through."""
        for number, (name, _) in self._known.items():
            if number not in parameters:
                self._twins.pop(f"{KIND}.{self._full(name)}", None)
        self._known = {number: item for number, item in self._known.items() if number in parameters}
        self._stays_dense &= set(self._known)

    def start(self, discard: bool) -> None:
        """Sends them; nothing in their place if this rank throws the round away."""
        self._slots = []
        for name, parameter in self._known.values():
            grad = None if discard else parameter.grad
            entries = _nothing(parameter) if grad is None else grad if grad.is_sparse else _rows(grad).tensor()
            sent, stays_dense = self._launch(entries, self._full(name)), id(parameter) in self._stays_dense
            self._slots.append(SparseSlot(name, parameter, len(self._slots), stays_dense, sent))

    def _launch(self, entries: torch.Tensor, full: str) -> RowSum:
        reduction, of = Reduction(self._op), self._process_set
        return RowSum(start_sparse(entries, full, reduction, of, partition_bytes=self.partition_bytes))

    def wait(self) -> None:
        """Blocks until all are here. Raises the first error, after waiting for all."""
        call_all([slot.sum.wait for slot in self._slots])

    def land(self) -> None:
        """Makes them every `p.grad`; one that no rank has stays None."""
        for slot in self._slots:
            slot.land()
        self._slots = []

    def depart(self) -> list[Departed]:
        """Instead of `wait` and `land`: hands over those that are in flight, if there are any."""
        slots, self._slots = self._slots, []
        return [Departed(SparseLanding(slots), [(slot.parts, slot.sum) for slot in slots])] if slots else []


def sparsify(parameter: torch.Tensor) -> None:
    """Makes a dense `p.grad` sparse by rows, as autograd had made it on some rank."""
    if parameter.grad is not None and not parameter.grad.is_sparse:
        parameter.grad = parameter.grad.to_sparse(_ROWS)


def _rows(grad: torch.Tensor) -> Rows:
    return Rows.of_dense(grad.detach().cpu().contiguous(), _ROWS)


def _nothing(parameter: torch.Tensor) -> torch.Tensor:
    indices = torch.empty(_ROWS, 0, dtype=torch.int64, device=parameter.device)
    values = parameter.new_empty(0, *parameter.shape[_ROWS:])
    return torch.sparse_coo_tensor(indices, values, parameter.shape, device=parameter.device)
