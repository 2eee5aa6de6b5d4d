"""Servers keep the common weights and the outer optimizer's state."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from typing_extensions import override

from byteps_like.store.future import Future
from byteps_like.store.policies.policy import Policy
from byteps_like.store.store import Store
from byteps_like.store.updates.update import ValueUpdate
from byteps_like.torch.low_comm.rounds import Landed, OuterRounds
from byteps_like.worker.api import Worker


class StoreRounds(OuterRounds):
    """Blocks at first, until the weights are rank 0's."""

    def __init__(
        self, name: str, values: Sequence[torch.Tensor], outer: ValueUpdate, policy: Policy, worker: Worker
    ) -> None:
        self.values = values
        self._names = [f"fragment.{number}" for number in range(len(values))]
        kept = dict(zip(self._names, values, strict=True))
        self._store = Store(name, kept, consistency=policy, update=outer, whole=outer.whole, worker=worker)
        self._futures: dict[int, Future] = {}
        for future in [self._store.pull(each, value, version=0) for each, value in kept.items()]:
            future.wait()

    @override
    def begin(self, fragment: int, change: torch.Tensor, weight: float) -> None:
        name = self._names[fragment]
        self._futures[fragment] = self._store.push_pull(name, change, self.values[fragment], weight=weight)

    @override
    def finish(self, fragment: int) -> Landed:
        future = self._futures.pop(fragment)
        future.wait()
        return Landed(future.version, future.age, future.counted)
