"""Ranks apply gradients, by any optimizer: servers add up how far each rank's steps have gone. As BytePS does it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from byteps_like.torch.stored.landing import Contributed, Settling, land
from byteps_like.torch.stored.periods import Periods
from byteps_like.torch.stored.weights import KeptWeights


class DeltaPushes:
    """What an optimizer's parameters were when servers heard of them last, and their weights there."""

    def __init__(self, weights: KeptWeights, periods: Periods) -> None:
        self.weight = 1.0
        self.passes_per_step = 1
        self._weights, self._periods = weights, periods
        self._base: dict[int, torch.Tensor] = {}
        """What servers know of, by the parameter's id."""
        self._settling = Settling()
        self._steps = 1

    def refresh(self) -> None:
        """Nothing: new parameters are found by the next step."""

    def step(self, plain: Callable[[], Any]) -> None:
        """A step of the plain optimizer; contributes what is due of it, and blocks until weights that are due land."""
        trained = self._trained()
        plain()
        for name, parameter in trained:
            if self._periods.pushes(name, self._steps):
                self._push(parameter)
        due = [parameter for name, parameter in trained if self._periods.pulls(name, self._steps)]
        for parameter in due:
            self._weights.start_read(parameter)
        for parameter in due:
            self._land(parameter)
        self._steps += 1
        self._settling.so_far()

    def restart(self) -> None:
        """Nothing: gradients are this rank's own."""

    def contributed(self) -> Contributed:
        """See Settling.so_far."""
        return self._settling.so_far()

    def check_between_steps(self) -> None:
        """Nothing: gradients are added up until step() is called."""

    def close(self) -> None:
        """Nothing: there are no hooks."""

    def clip_refused(self, what: str) -> None:
        """Nothing: gradients are this rank's own, to be changed before step()."""

    def _trained(self) -> list[tuple[str, torch.Tensor]]:
        self._weights.open()
        trained = [(name, parameter) for name, parameter in self._weights.named() if parameter.requires_grad]
        for _, parameter in trained:
            if id(parameter) not in self._base:
                self._base[id(parameter)] = parameter.detach().clone()
        return trained

    def _push(self, parameter: torch.Tensor) -> None:
        base = self._base[id(parameter)]
        delta = parameter.detach() - base
        self._settling.add(self._weights.push(parameter, delta, None, self.weight))
        base.copy_(parameter.detach())

    def _land(self, parameter: torch.Tensor) -> None:
        """What this rank has not contributed stays on top."""
        base = self._base[id(parameter)]
        unsaid = parameter.detach() - base
        land(base, self._weights.finish_read(parameter))
        land(parameter, base + unsaid)
