"""How what was saved of a tensor, in pieces, becomes what other partitions of it keep. Pure.

A piece has a range of the value's bytes, and the state of the update for these: arrays one behind the other, each with
as much for every element, or for every row of `width` elements. So a range of elements has a range of each array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from byteps_like.errors import CorruptError, MismatchError
from byteps_like.store.saving.manifest import SavedPiece, SavedTensor
from byteps_like.wire.saving import SavedPart

_OF_FUNCTION = "update function"
"""In the terms of a tensor whose state has whatever form its users gave it."""


class Ranged(Protocol):
    """A range of a value's bytes, and the bytes of state for it."""

    @property
    def offset(self) -> int:
        """In the value, in bytes."""

    @property
    def nbytes(self) -> int:
        """Of the value."""

    @property
    def state_bytes(self) -> int:
        """Of the state."""


@dataclass(frozen=True)
class Copy:
    """Bytes of a piece that a partition gets."""

    source: int
    """Where they are in the piece's value, or state."""
    target: int
    """Where they go to."""
    nbytes: int


def overlapping(pieces: Sequence[Ranged], offset: int, nbytes: int, name: str) -> list[int]:
    """Which of the pieces have something of a range, in order. Raises CorruptError unless they have all of it."""
    found = sorted(
        (number for number, one in enumerate(pieces) if overlap(one, offset, nbytes)),
        key=lambda number: pieces[number].offset,
    )
    at = offset
    for number in found:
        if pieces[number].offset > at:
            break
        at = max(at, _end(pieces[number]))
    if at < offset + nbytes:
        raise CorruptError(f"the checkpoint has nothing of byte {at} of {name!r}", key=name)
    return found


def newest(pieces: Sequence[SavedPiece], offset: int, nbytes: int, name: str) -> int:
    """The greatest version of what a range gets."""
    return max((pieces[one].version for one in overlapping(pieces, offset, nbytes, name)), default=0)


def cut_for(
    place: tuple[int, int, int], saved: SavedTensor, name: str, read: Callable[[SavedPiece], memoryview]
) -> Iterator[tuple[SavedPart, int, memoryview]]:
    """What makes a partition, of an offset, bytes of the value and bytes of state, of pieces: where it goes in value or
    state, and the bytes."""
    for number in overlapping(saved.pieces, *place[:2], name):
        piece = saved.pieces[number]
        yield from cut_from(piece, read(piece), place, name, saved.terms)


def cut_from(
    piece: Ranged, data: memoryview, place: tuple[int, int, int], name: str, terms: str
) -> Iterator[tuple[SavedPart, int, memoryview]]:
    """The same of one piece, which has something of it, and `data`."""
    kept = {SavedPart.VALUE: data[: piece.nbytes], SavedPart.STATE: data[piece.nbytes :]}
    for part, copy in copies_of(piece, place, name, terms):
        yield part, copy.target, kept[part][copy.source : copy.source + copy.nbytes]


def copies_of(piece: Ranged, place: tuple[int, int, int], name: str, terms: str) -> Iterator[tuple[SavedPart, Copy]]:
    """What of a piece goes to value and state of such a partition."""
    offset, nbytes, state_bytes = place
    yield SavedPart.VALUE, value_copy(piece, offset, nbytes)
    for copy in state_copies(piece, offset, nbytes, state_bytes, name, has_form=_OF_FUNCTION not in terms):
        yield SavedPart.STATE, copy


def overlap(piece: Ranged, offset: int, nbytes: int) -> bool:
    """Whether a piece has something of a range."""
    return piece.offset < offset + nbytes and offset < _end(piece)


def value_copy(piece: Ranged, offset: int, nbytes: int) -> Copy:
    """What of the value a partition of that range gets from a piece."""
    begin, end = max(piece.offset, offset), min(_end(piece), offset + nbytes)
    return Copy(begin - piece.offset, begin - offset, end - begin)


def state_copies(
    piece: Ranged, offset: int, nbytes: int, state_bytes: int, name: str, *, has_form: bool = True
) -> list[Copy]:
    """What of the state, of which the partition has `state_bytes`. `has_form`: it is as above. Raises
    MismatchError where it can't be cut so."""
    if not state_bytes and not piece.state_bytes:
        return []
    if (piece.offset, piece.nbytes, piece.state_bytes) == (offset, nbytes, state_bytes):
        return [Copy(0, 0, state_bytes)]
    is_regular = has_form and bool(state_bytes) and (state_bytes % nbytes == 0 or nbytes % state_bytes == 0)
    if not is_regular or piece.state_bytes * nbytes != state_bytes * piece.nbytes:
        raise _uncut(piece, nbytes, state_bytes, name)
    arrays = max(1, state_bytes // nbytes)
    whole = value_copy(piece, offset, nbytes)
    copies = []
    for array in range(arrays):
        source, target = array * piece.state_bytes // arrays, array * state_bytes // arrays
        parts = [one * state_bytes for one in (whole.source, whole.target, whole.nbytes)]
        if any(one % (nbytes * arrays) for one in parts):
            raise _uncut(piece, nbytes, state_bytes, name)
        begin, to, length = (one // (nbytes * arrays) for one in parts)
        copies.append(Copy(source + begin, target + to, length))
    return copies


def _uncut(piece: Ranged, nbytes: int, state_bytes: int, name: str) -> MismatchError:
    return MismatchError(
        f"{name!r}: the checkpoint has {piece.state_bytes} bytes of the update's state for {piece.nbytes} of the value,"
        f" and this job {state_bytes} for {nbytes}: such a state can't be cut; use as many servers as then, or"
        " whole=True",
        key=name,
    )


def _end(piece: Ranged) -> int:
    return piece.offset + piece.nbytes
