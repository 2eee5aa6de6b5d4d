"""Gradients that are sparse: each is summed by rows (see sparse), beside the arenas, at the end of a round."""

from __future__ import annotations

from collections.abc import Callable, Container

import torch

from byteps_like.dtypes import Op
from byteps_like.torch.arena import Named
from byteps_like.torch.sparse import sparse_allreduce_async

_ROWS = 1  # sparse dimensions of an embedding's gradient


class SparseGradients:
    """Known are those that were sparse on any rank in a round before, in one order on all ranks."""

    def __init__(self, label: str, op: Op, process_set: object) -> None:
        self.touched = False
        """Whether a backward has reached one since the last round."""
        self._label, self._op, self._process_set = label, op, process_set
        self._known: dict[int, Named] = {}
        self._flights: list[Callable[[], torch.Tensor]] = []
        self._totals: list[torch.Tensor] = []

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
        if parameter.grad is not None:
            parameter.grad = parameter.grad.to_sparse(_ROWS)

    def keep(self, parameters: Container[int]) -> None:
        """Forgets all but those of these ids."""
        self._known = {number: item for number, item in self._known.items() if number in parameters}

    def start(self, discard: bool) -> None:
        """Sends them; nothing in their place if this rank throws the round away."""
        self._flights = []
        for name, parameter in self._known.values():
            grad = None if discard else parameter.grad
            entries = _nothing(parameter) if grad is None else grad if grad.is_sparse else grad.to_sparse(_ROWS)
            full = f"{self._label}.sparse.{name}"
            self._flights.append(sparse_allreduce_async(entries, full, self._op, self._process_set))

    def wait(self) -> None:
        """Blocks until all are here."""
        self._totals = [finish() for finish in self._flights]

    def land(self) -> None:
        """Makes them every `p.grad`; one that no rank has stays None."""
        for parameter, total in zip(self.parameters(), self._totals, strict=True):
            if parameter.grad is not None or total._nnz():
                parameter.grad = total


def _nothing(parameter: torch.Tensor) -> torch.Tensor:
    indices = torch.empty(_ROWS, 0, dtype=torch.int64)
    values = parameter.new_empty(0, *parameter.shape[_ROWS:])
    return torch.sparse_coo_tensor(indices, values, parameter.shape)
