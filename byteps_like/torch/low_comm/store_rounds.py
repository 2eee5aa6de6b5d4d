"""Servers keep the common weights and the outer optimizer's state."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from typing_extensions import override

from byteps_like.store.future import Future
from byteps_like.store.policies.policy import Policy
from byteps_like.store.policies.synchronous import Bsp
from byteps_like.store.saving.saved import Saved
from byteps_like.store.store import Store, saved_together
from byteps_like.store.updates.update import ValueUpdate
from byteps_like.torch.low_comm.rounds import OuterRounds, SettledChange, fragment_name
from byteps_like.torch.low_comm.terms import LowCommTerms
from byteps_like.worker.api import Worker


class StoreRounds(OuterRounds):
    """Blocks at first, until the weights are rank 0's."""

    def __init__(
        self, name: str, values: Sequence[torch.Tensor], outer: ValueUpdate, terms: LowCommTerms, worker: Worker
    ) -> None:
        self.values, self._terms, self._worker = values, terms, worker
        self._codec = terms.codec_of_contributions()
        self._names = [fragment_name(number) for number in range(len(values))]
        kept = dict(zip(self._names, values, strict=True))
        self._store = Store(
            name, kept, consistency=self._policy, update=outer, whole=outer.whole, together=False,
            codec=self._codec or "", feedback=terms.feedback if self._codec else None, upper=terms.upper,
            on_loss=terms.on_loss, worker=worker,
        )  # fmt: skip
        self._reads: dict[int, Future] = {}
        self._pushes: list[deque[Future]] = [deque() for _ in values]
        self._has_left = False
        self.restored()

    @property
    def _policy(self) -> Policy:
        return self._terms.policy(self._worker.size)

    @override
    def saved(self) -> AbstractContextManager[Saved]:
        return saved_together(self._store.name, [self._store])

    @override
    def restored(self) -> None:
        for pushes in self._pushes:
            pushes.clear()  # what waited is late, and nobody asks
        kept = zip(self._names, self.values, strict=True)
        for future in [self._store.pull(name, value, version=0) for name, value in kept]:
            future.wait()

    @override
    def own(self) -> dict[str, Any]:
        if self._codec is None:
            return super().own()
        residuals = [torch.from_numpy(self._store.residual(name)) for name in self._names]
        return {"codec": self._codec.spec(), "residuals": residuals, "rounds": [0 for _ in residuals]}

    @override
    def take_own(self, own: Mapping[str, Any], *, is_own: bool) -> None:
        if is_own and self._codec is not None:
            for name, residual in zip(self._names, own["residuals"], strict=True):
                self._store.owe(name, residual.numpy())

    @override
    def enter(self) -> None:
        if self._has_left:
            self._store.change(self._policy)
            self._has_left = False

    @override
    def leave(self) -> bool:
        if not isinstance(self._policy, Bsp):
            for handle in self._store.start_finish():
                handle.wait()
            self._has_left = True
        if not self._store.exchange_above() and not self._has_left:
            return False
        for future in self._reads.values():
            future.wait()
        self._reads = {number: self._store.pull(name, self.values[number]) for number, name in enumerate(self._names)}
        return True

    @override
    def begin(self, fragment: int, change: torch.Tensor, weight: float) -> None:
        name = self._names[fragment]
        self._pushes[fragment].append(self._store.push(name, change, weight=weight))
        self._reads[fragment] = self._store.pull(name, self.values[fragment])

    @override
    def finish(self, fragment: int) -> int:
        future = self._reads.pop(fragment)
        future.wait()
        return future.version

    @override
    def settled(self, fragment: int) -> Sequence[SettledChange]:
        pushes, found = self._pushes[fragment], []
        while pushes and pushes[0].done():
            one = pushes.popleft()
            found.append(SettledChange(one.age, one.counted, one.contributors))
        return found
