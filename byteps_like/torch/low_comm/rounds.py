"""What makes the common weights of those of the ranks: the seam between when that happens and where."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch


class Landed(NamedTuple):
    """What has become of a fragment's contribution."""

    version: int
    """Of the common weights: how often they were updated."""
    staleness: int
    """How many versions were made between the one that it began with and the one that it is part of."""
    counted: bool
    """Whether it was applied: it was finite."""


class OuterRounds(ABC):
    """The common weights as this rank has them, fragment by fragment, and who updates them. One thread at a time."""

    values: Sequence[torch.Tensor]
    """Of each fragment, the common weights that landed last; at first rank 0's. Not to be read between `begin` and
    `finish`."""

    @abstractmethod
    def begin(self, fragment: int, change: torch.Tensor, weight: float) -> None:
        """Contributes `change`, which must stay as it is until `finish`, to the next version. Never blocks."""

    @abstractmethod
    def finish(self, fragment: int) -> Landed:
        """Blocks until there is a newer version, which is in `values` then. Raises the job's error."""
