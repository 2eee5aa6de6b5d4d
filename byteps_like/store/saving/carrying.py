"""What is kept goes on from one world of a job in the next. Servers have set it aside, and ranks take along where that
is. Where servers can't, or there are none, each rank takes a share in its memory, and hands it over to whoever keeps it
there. No disk is needed, and no rank holds more than its share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from byteps_like.dtypes import DType
from byteps_like.errors import CorruptError, PeerLostError
from byteps_like.store.saving.checkpoint import Taken, check, replace_all
from byteps_like.store.saving.manifest import Manifest, SavedPiece, SavedTensor
from byteps_like.store.saving.recut import overlapping
from byteps_like.store.saving.saved import Saved, SavedContent


class ValuesLostError(PeerLostError):
    """What was kept has gone with its world: no other one can go on with it."""


@dataclass(frozen=True)
class CarriedShare:
    """What a rank carries, without the bytes."""

    name: str
    rank: int
    carriers: tuple[int, ...]
    """The ranks of the world before that have a share."""
    tensors: dict[str, SavedTensor]
    aside: tuple[SavedContent, ...] = ()
    """What servers have set aside: all of it, and the same for all ranks."""

    @classmethod
    def of(cls, taken: Taken) -> CarriedShare:
        """That of what this rank has taken."""
        tensors = {
            name: replace(one, pieces=tuple(_piece(own) for own in taken.contents if own.tensor == name))
            for name, one in taken.tensors.items()
        }
        aside = tuple(one for one in taken.contents if one.aside is not None)
        return cls(taken.name, taken.rank, taken.present, tensors, aside)


def joined(shares: Sequence[CarriedShare]) -> Manifest:
    """All of it. Raises ValuesLostError where something is missing."""
    if shares[0].aside:
        shares = shares[:1]
    first = shares[0]
    tensors = {
        name: replace(one, pieces=tuple(piece for share in shares for piece in share.tensors[name].pieces))
        for name, one in first.tensors.items()
    }
    gone = sorted(set(first.carriers) - {one.rank for one in shares})
    if gone and not first.aside and not all(_is_whole(name, one) for name, one in tensors.items()):
        ranks = ", ".join(map(str, gone))
        raise ValuesLostError(
            f"the values of {first.name!r} aren't whole any more: rank {ranks} of the world before is gone with its"
            " share",
            operation="carry",
        )
    version = min((piece.version for one in tensors.values() for piece in one.pieces), default=0)
    return Manifest(first.name, version, len(first.carriers), tensors)


def _is_whole(name: str, tensor: SavedTensor) -> bool:
    """Of a table nobody can tell: any rank may have had rows of it."""
    if tensor.is_table:
        return False
    try:
        overlapping(tensor.pieces, 0, math.prod(tensor.shape) * DType[tensor.dtype.upper()].itemsize, name)
    except CorruptError:
        return False
    return True


def hand_over(saved: Saved, manifest: Manifest, contents: Sequence[SavedContent]) -> None:
    """Makes what is kept here what was kept there. All ranks call it, each with what it has carried, or with where it
    is; nothing is changed before all is here. Raises MismatchError where it is something else, ValuesLostError where
    somebody is gone who had some of it."""
    check(saved, manifest, "the world before")
    if lost := saved.lost(contents):
        raise ValuesLostError(f"the values of {saved.name!r} aren't whole any more: {lost}", operation="carry")
    replace_all(saved, manifest, lambda: saved.bring_over(manifest, contents), "go on from the world before")


def _piece(one: SavedContent) -> SavedPiece:
    return SavedPiece("", 0, one.offset, one.nbytes, one.state_bytes, one.version, one.clocks, 0, one.waiting)
