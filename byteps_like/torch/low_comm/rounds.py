"""What makes the common weights of those of the ranks: the seam between when that happens and where."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch

from byteps_like.store.saving.saved import Saved


class SettledChange(NamedTuple):
    """What has become of a fragment's contribution."""

    staleness: int
    """How many versions were made between the one that it began with and the one that it is part of."""
    counted: bool
    """Whether it was applied: it was finite."""
    contributors: tuple[int, ...]
    """The ranks whose contributions are in that version, ascending."""


def fragment_name(number: int) -> str:
    """What a fragment is called, on servers and in checkpoints."""
    return f"fragment.{number}"


class OuterRounds(ABC):
    """The common weights as this rank has them, fragment by fragment, and who updates them. One thread at a time."""

    values: Sequence[torch.Tensor]
    """Of each fragment, the common weights that landed last; at first rank 0's. Not to be read between `begin` and
    `finish`."""

    @abstractmethod
    def begin(self, fragment: int, change: torch.Tensor, weight: float) -> None:
        """Contributes `change`, which must not be changed any more, to the next version. Never blocks."""

    @abstractmethod
    def finish(self, fragment: int) -> int:
        """Blocks until there is a newer version, which is in `values` then; its number. Raises the job's error."""

    @abstractmethod
    def settled(self, fragment: int) -> Sequence[SettledChange]:
        """What has become of contributions, of those of which that wasn't told before. Never blocks."""

    @abstractmethod
    def saved(self) -> AbstractContextManager[Saved]:
        """The common weights and the outer optimizer's state, to be saved or restored while nothing is under way."""

    def restored(self) -> None:  # noqa: B027 - most have nothing to do
        """They were: blocks until `values` are those that were restored."""

    def own(self) -> dict[str, Any]:
        """What this rank alone holds: plain values and tensors."""
        return {"codec": ""}

    def take_own(self, own: Mapping[str, Any], *, is_own: bool) -> None:  # noqa: B027 - most have nothing to do
        """What `own` has given on this rank (`is_own`), or on another whose place this one takes."""

    def enter(self) -> None:  # noqa: B027 - most have nothing to do
        """Training begins, or goes on."""

    def leave(self) -> bool:
        """It is over for now. All ranks call it. Returns whether there is a newer version of every fragment to
        `finish`, because one was made of contributions that were left; then it has blocked until all had come."""
        return False
