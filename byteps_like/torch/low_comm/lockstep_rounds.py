"""Without servers: all ranks contribute to every version, and each makes the same update."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from typing_extensions import override

from byteps_like.store.combining.registry import combining_by
from byteps_like.store.policies.synchronous import Bsp
from byteps_like.store.saving.alike import HeldAlike, SavedAlike
from byteps_like.store.saving.saved import Saved
from byteps_like.store.terms import StoreTerms
from byteps_like.store.updates.update import Values, ValueUpdate, is_finite
from byteps_like.torch.low_comm.rounds import OuterRounds, SettledChange, fragment_name
from byteps_like.torch.ops.differentiable import broadcast_
from byteps_like.worker.api import Worker


class LockstepRounds(OuterRounds):
    """Blocks at first, until the weights are rank 0's. Subclasses say how contributions travel."""

    def __init__(self, name: str, values: Sequence[torch.Tensor], outer: ValueUpdate, worker: Worker) -> None:
        self.values, self._outer = values, outer
        self._name, self._worker = name, worker
        self._held = [HeldAlike(value.numpy(), outer.fresh_state(value.numpy())) for value in values]
        self._settled: list[list[SettledChange]] = [[] for _ in values]
        for number, value in enumerate(values):
            broadcast_(value, 0, name=f"{name}.{number}.first")

    @abstractmethod
    def _mean(self, fragment: int) -> Values:
        """Blocks until all ranks have contributed; the mean change, of the fragment's shape and type."""

    @override
    def finish(self, fragment: int) -> int:
        mean, held = self._mean(fragment), self._held[fragment]
        finite = is_finite(mean)
        if finite:
            held.version += 1
            updated, held.state = self._outer.apply(held.value, held.state, mean, step=held.version)
            np.copyto(held.value, updated)
        self._settled[fragment].append(SettledChange(0, finite, tuple(range(self._worker.size)) if finite else ()))
        return held.version

    @override
    def settled(self, fragment: int) -> Sequence[SettledChange]:
        told, self._settled[fragment] = self._settled[fragment], []
        return told

    @override
    def saved(self) -> AbstractContextManager[Saved]:
        terms = StoreTerms(Bsp(), self._outer, combining_by("mean", None, None))
        held = {fragment_name(number): one for number, one in enumerate(self._held)}
        group = self._worker.group(f"{self._name}.saving")
        return nullcontext(SavedAlike(self._name, group, held, terms.kept_as))
