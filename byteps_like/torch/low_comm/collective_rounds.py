"""Without servers: changes are summed among the ranks, each of which makes the same update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from typing_extensions import override

from byteps_like.store.updates.update import Values, ValueUpdate, is_finite
from byteps_like.torch.calls.handles import synchronize
from byteps_like.torch.low_comm.rounds import OuterRounds, SettledChange
from byteps_like.torch.ops.differentiable import broadcast_
from byteps_like.torch.ops.single import push_pull_async_inplace


@dataclass
class _Fragment:
    name: str
    sums: torch.Tensor
    """Of weighted changes, and behind them of the weights."""
    state: Values
    version: int = 0
    handle: int = -1
    settled: list[SettledChange] = field(default_factory=list)


class CollectiveRounds(OuterRounds):
    """Blocks at first, until the weights are rank 0's."""

    def __init__(self, name: str, values: Sequence[torch.Tensor], outer: ValueUpdate) -> None:
        self.values, self._outer = values, outer
        self._fragments = [
            _Fragment(f"{name}.{number}", value.new_empty(len(value) + 1), outer.fresh_state(value.numpy()))
            for number, value in enumerate(values)
        ]
        for fragment, value in zip(self._fragments, values, strict=True):
            broadcast_(value, 0, name=f"{fragment.name}.first")

    @override
    def begin(self, fragment: int, change: torch.Tensor, weight: float) -> None:
        one = self._fragments[fragment]
        torch.mul(change, weight, out=one.sums[:-1])
        one.sums[-1] = weight
        one.handle = push_pull_async_inplace(one.sums, average=False, name=one.name)

    @override
    def finish(self, fragment: int) -> int:
        one, value = self._fragments[fragment], self.values[fragment].numpy()
        synchronize(one.handle)
        sums = one.sums.numpy()
        mean = sums[:-1] / sums[-1]
        finite = is_finite(mean)
        if finite:
            one.version += 1
            updated, one.state = self._outer.apply(value, one.state, mean, step=one.version)
            np.copyto(value, updated)
        one.settled.append(SettledChange(0, finite))
        return one.version

    @override
    def settled(self, fragment: int) -> Sequence[SettledChange]:
        one = self._fragments[fragment]
        told, one.settled = one.settled, []
        return told
