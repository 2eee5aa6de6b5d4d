"""What a rank has to write of a cut, and what servers keep of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from byteps_like.store.arrays import Array
from byteps_like.store.saving.checkpoint import Taken
from byteps_like.store.saving.manifest import Manifest
from byteps_like.store.saving.saved import SavedContent


@runtime_checkable
class KeptOnServers(Protocol):
    """A Store, a KV, LowComm, an optimizer with a consistency: what has checkpoints of its own."""

    def taken(self) -> Taken:
        """This rank's share of one. All ranks call it; blocks until all have theirs."""

    def restore(self, path: Path) -> None:
        """Goes on from one. All ranks call it."""


@runtime_checkable
class GoesOn(Protocol):
    """What of these goes on in the next world."""

    def leave(self, leaving: Iterable[int]) -> Taken:
        """What this rank takes along of it, or where it is; those `leaving` the job have none. All ranks call it."""

    def reopen(self) -> None:
        """In the next world, before anything else. All ranks call it that were in the one before; others make it."""

    def take_over(self, manifest: Manifest, contents: Sequence[SavedContent]) -> None:
        """Goes on from what was left, of which this rank has `contents`, or knows where they are. All ranks call it.
        Raises ValuesLostError where some are gone."""


@runtime_checkable
class LeavesOut(Protocol):
    """What has codecs whose residuals are in no checkpoint of its own."""

    def residuals(self) -> dict[str, Array]:
        """By tensor."""

    def owe(self, name: str, residual: Array) -> None:
        """Makes that a tensor's."""


@dataclass(frozen=True)
class CutContent:
    """All of it, as of one step boundary: nobody changes what is in it any more."""

    common: Mapping[str, Any]
    """What all ranks hold alike, by name: trees of plain values and tensors; other objects in them are pickled."""
    own: Mapping[str, Any]
    """What is this rank's: a tree without other objects."""
    kept: Mapping[str, Taken] = field(default_factory=dict)
    """This rank's share of what servers keep, by name."""


@dataclass(frozen=True)
class Owns:
    """What was ranks' own, as this rank needs it of a cut."""

    first: Any
    """Rank 0's: a rank that was not there takes from it what is the same on all."""
    mine: Any = None
    """This rank's; None: it was not there, or had nothing."""
    missing: Sequence[Any] = ()
    """On rank 0, those of the ranks that there are no longer."""

    def of(self, name: str) -> Owns:
        """An entry of each."""
        return Owns(_entry(self.first, name), _entry(self.mine, name), [_entry(one, name) for one in self.missing])


def _entry(own: Any, name: str) -> Any:
    return None if own is None else own.get(name)


class Cuttable(Protocol):
    """A state, as savers see it."""

    def cut_content(self) -> CutContent:
        """What was kept by the last commit. All ranks call it together, at a step boundary."""

    def resume_from_cut(self, common: Mapping[str, Any], owns: Owns) -> None:
        """Takes what a cut has, but for what servers keep. `owns`: by the names of what had something."""

    def kept_on_servers(self) -> Mapping[str, KeptOnServers]:
        """What servers keep of it."""
