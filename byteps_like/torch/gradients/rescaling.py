"""Error feedback under learning rates that change: what is left of a gradient counts in terms of the next rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from byteps_like.torch.gradients.slot import Slot

Rates = Callable[[], dict[int, float]]
"""The learning rates of parameters as they are now, by the parameters' ids."""


class Rescaling:
    """Remembers the rate that each gradient's last update was made with; rates of 0 are passed over."""

    def __init__(self) -> None:
        self._last: dict[int, float] = {}

    def factors(self, slots: Sequence[Slot], rates: Rates) -> dict[int, float]:
        """Before a round: rate before / rate now, by the slots' numbers."""
        known = rates()
        now = {slot.index: known.get(id(slot.parameter), 0.0) for slot in slots}
        found = {
            index: self._last[index] / value if value and index in self._last else 1.0 for index, value in now.items()
        }
        self._last.update((index, value) for index, value in now.items() if value)
        return found
