"""Ranks apply gradients, by any optimizer: servers add up how far each rank's steps have gone. As BytePS does it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from typing_extensions import override

from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.stored.periods import Periods
from byteps_like.torch.stored.pushes import Pushes
from byteps_like.torch.stored.weights import KeptWeights


class DeltaPushes(Pushes):
    """Gradients are this rank's own, and may be changed before each step."""

    def __init__(self, weights: KeptWeights, periods: Periods) -> None:
        super().__init__(weights, periods)
        self._base: dict[int, torch.Tensor] = {}
        """What servers know of each parameter, by its id: as it landed, and what was contributed since."""

    @override
    def step(self, plain: Callable[[], Any]) -> None:
        self._weights.open()
        for _, parameter in self._trained():
            if id(parameter) not in self._base:
                self._base[id(parameter)] = parameter.detach().clone()
        plain()
        for name, parameter in self._trained():
            if self._periods.pushes(name, self._steps):
                self._contribute(parameter)
        self._land(self._due())
        self._next_step()

    @override
    def block(self, weight: float | None) -> None:
        raise InvalidArgumentError(
            "block() is for servers that apply gradients: what a rank's own optimizer makes of a part of a mini-batch"
            " is not a part of its step. Pass apply='server' to DistributedOptimizer, or leave block() out"
        )

    def _contribute(self, parameter: torch.Tensor) -> None:
        base = self._base[id(parameter)]
        self._push(parameter, parameter.detach() - base)
        base.copy_(parameter.detach())

    @override
    def reopen(self) -> None:
        self._base.clear()
        super().reopen()

    @override
    def _take(self, parameter: torch.Tensor, value: torch.Tensor) -> None:
        """What this rank has not contributed stays on top."""
        base = self._base.setdefault(id(parameter), parameter.detach().clone())
        unsaid = parameter.detach() - base
        super()._take(base, value)
        super()._take(parameter, base + unsaid)
