"""Changes are summed among the ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from typing_extensions import override

from byteps_like.store.updates.update import Values, ValueUpdate
from byteps_like.torch.calls.handles import synchronize
from byteps_like.torch.low_comm.lockstep_rounds import LockstepRounds
from byteps_like.torch.ops.single import push_pull_async_inplace
from byteps_like.worker.api import Worker


class CollectiveRounds(LockstepRounds):
    """Of each fragment, weighted changes are summed, and behind them the weights."""

    def __init__(self, name: str, values: Sequence[torch.Tensor], outer: ValueUpdate, worker: Worker) -> None:
        super().__init__(name, values, outer, worker)
        self._sums = [value.new_empty(len(value) + 1) for value in values]
        self._handles = [-1] * len(values)

    @override
    def begin(self, fragment: int, change: torch.Tensor, weight: float) -> None:
        sums = self._sums[fragment]
        torch.mul(change, weight, out=sums[:-1])
        sums[-1] = weight
        self._handles[fragment] = push_pull_async_inplace(sums, average=False, name=f"{self._name}.{fragment}")

    @override
    def _mean(self, fragment: int) -> Values:
        synchronize(self._handles[fragment])
        sums = self._sums[fragment].numpy()
        mean: Values = sums[:-1] / sums[-1]
        return mean
