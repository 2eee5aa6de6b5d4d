"""DistributedOptimizer with op=Adasum: every rank takes a step of its own, and the steps are reduced.

As Horovod's: momentum and the like stay each rank's own, and nothing is sent before `step()` knows how far it went.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import torch

from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.calls.handles import synchronize
from byteps_like.torch.calls.reductions import Adasum
from byteps_like.torch.compression.casts import Compressor
from byteps_like.torch.gradients.parts import Named
from byteps_like.torch.job import runtime as _runtime
from byteps_like.torch.ops.adasum import check_ranks
from byteps_like.torch.ops.grouped import grouped_allreduce_async
from byteps_like.torch.optimizer.twin import DistributedTwin

Closure = Callable[[], Any]


class StepReducer:
    """Takes a step from where all ranks are to where the Adasum of their steps leads."""

    def __init__(
        self, named: Callable[[], Iterable[Named]], compression: type[Compressor], process_set: object
    ) -> None:
        runtime = _runtime.current()
        scope = runtime.scope(process_set)
        self._named, self._compression, self._process_set = named, compression, process_set
        self._label = f"steps.{runtime.count(f'{scope.prefix}steps')}"
        for parameter in self._trained():
            check_ranks(parameter, scope.size)

    def _trained(self) -> list[torch.Tensor]:
        return [parameter for _, parameter in self._named() if parameter.requires_grad]

    def __call__(self, step: Callable[[], Any]) -> Any:
        """`step()`, and its result. Blocks; raises as `allreduce` does, and then the parameters are this rank's own."""
        if _runtime.current().scope(self._process_set).size == 1:
            return step()
        parameters = self._trained()
        starts = [parameter.detach().clone() for parameter in parameters]
        result = step()
        with torch.no_grad():
            moves = [parameter - start for parameter, start in zip(parameters, starts, strict=True)]
            for parameter, start, move in zip(parameters, starts, self._reduced(moves), strict=True):
                parameter.copy_(start.add_(move))
        return result

    def _reduced(self, moves: list[torch.Tensor]) -> list[torch.Tensor]:
        wire = [self._compression.compress(move) for move in moves]
        tensors = [tensor for tensor, _ in wire]
        handle = grouped_allreduce_async(tensors, name=self._label, op=Adasum, process_set=self._process_set)
        contexts = [context for _, context in wire]
        return [self._compression.decompress(*item) for item in zip(synchronize(handle), contexts, strict=True)]


class AdasumOptimizerMixin(DistributedTwin):
    """The methods that differ from the plain optimizer's. See optimizer.DistributedOptimizerMixin."""

    _distribution: StepReducer

    route = "allreduce"
    route_why = "Adasum goes by messages between pairs of workers"

    def step(self, closure: Closure | None = None) -> Any:
        """One step of the plain optimizer on this rank's own gradients, then the Adasum of all ranks' steps. Blocks."""
        plain = super().step
        return self._distribution(plain if closure is None else lambda: plain(closure))

    def synchronize(self) -> None:
        """Does nothing, as in Horovod: gradients stay this rank's own, to be clipped or not before `step()`."""

    def skip_synchronize(self) -> NoReturn:
        """Raises InvalidArgumentError."""
        raise InvalidArgumentError("op=Adasum reduces steps, not gradients: leave out skip_synchronize()")

    def close(self) -> None:
        """Does nothing: there are no hooks."""
