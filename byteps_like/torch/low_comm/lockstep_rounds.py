"""Without servers: all ranks contribute to every version, and each makes the same update."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from typing_extensions import override

from byteps_like.store.updates.update import Values, ValueUpdate, is_finite
from byteps_like.torch.low_comm.rounds import OuterRounds, SettledChange
from byteps_like.torch.ops.differentiable import broadcast_


class LockstepRounds(OuterRounds):
    """Blocks at first, until the weights are rank 0's. Subclasses say how contributions travel."""

    def __init__(self, name: str, values: Sequence[torch.Tensor], outer: ValueUpdate, ranks: int) -> None:
        self.values, self._outer, self._everybody = values, outer, tuple(range(ranks))
        self._states = [outer.fresh_state(value.numpy()) for value in values]
        self._versions = [0] * len(values)
        self._settled: list[list[SettledChange]] = [[] for _ in values]
        for number, value in enumerate(values):
            broadcast_(value, 0, name=f"{name}.{number}.first")

    @abstractmethod
    def _mean(self, fragment: int) -> Values:
        """Blocks until all ranks have contributed; the mean change, of the fragment's shape and type."""

    @override
    def finish(self, fragment: int) -> int:
        mean, value = self._mean(fragment), self.values[fragment].numpy()
        finite = is_finite(mean)
        if finite:
            self._versions[fragment] += 1
            updated, self._states[fragment] = self._outer.apply(
                value, self._states[fragment], mean, step=self._versions[fragment]
            )
            np.copyto(value, updated)
        self._settled[fragment].append(SettledChange(0, finite, self._everybody if finite else ()))
        return self._versions[fragment]

    @override
    def settled(self, fragment: int) -> Sequence[SettledChange]:
        told, self._settled[fragment] = self._settled[fragment], []
        return told
