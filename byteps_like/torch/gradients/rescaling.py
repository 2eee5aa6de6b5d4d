"""Error feedback under learning rates that change: what is left of a gradient counts in terms of the next rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from byteps_like.torch.gradients.slot import Slot

Rates = Callable[[], dict[int, float]]
"""The learning rates of parameters as they are now, by the parameters' ids."""


class Rescaling:
    """Remembers the rate that each gradient's last update was made with, by the parameters' names; rates of 0 are
    passed over. One for all buckets of a reducer, so that it stays when these are built anew."""

    def __init__(self) -> None:
        self.rates: Rates | None = None
        """None: they aren't known, and nothing is rescaled."""
        self.last: dict[str, float] = {}

    def factors(self, slots: Sequence[Slot]) -> dict[int, float]:
        """Before a round: rate before / rate now, by the slots' numbers."""
        known = {} if self.rates is None else self.rates()
        now = {slot.index: known.get(id(slot.parameter), 0.0) for slot in slots}
        found = {slot.index: self._factor(slot.name, now[slot.index]) for slot in slots}
        self.last.update((slot.name, now[slot.index]) for slot in slots if now[slot.index])
        return found

    def factor(self, name: str, parameter: torch.Tensor) -> float:
        """The same of one gradient, outside of rounds."""
        return self._factor(name, 0.0 if self.rates is None else self.rates().get(id(parameter), 0.0))

    def _factor(self, name: str, now: float) -> float:
        return self.last[name] / now if now and name in self.last else 1.0
