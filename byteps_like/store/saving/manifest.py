"""The files of a checkpoint: parts, which ranks write, and a manifest, which makes them one; it is renamed last.

A directory without a manifest is no checkpoint, and what a manifest doesn't name belongs to none. `docs/how-to/
store-checkpoints.md` describes the files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from byteps_like.errors import CorruptError, SystemCallError
from byteps_like.store.saving.files import read_checked, told, write_checked
from byteps_like.wire.crc32c import Buffer, crc32c

MANIFEST = "manifest.json"
_FORMAT = "byteps_like store checkpoint"
_INDEX = "byteps_like store checkpoint's index"


@dataclass(frozen=True)
class SavedPiece:
    """What a key kept: bytes of a part."""

    file: str
    at: int
    """Where they begin there: the value, then the state of the update; of a table: rows."""
    offset: int
    """Of the value in its tensor, in bytes; 0 of a table."""
    nbytes: int
    """Of the value; of a table: of rows."""
    state_bytes: int
    """Behind the value; of a table: in each row."""
    version: int
    clocks: tuple[int, ...]
    """By rank, how many of its contributions were applied, or late."""
    crc: int
    """CRC32C of all its bytes."""
    waiting: int = 0
    """Contributions that were in no version yet: the checkpoint has nothing of them."""

    @property
    def length(self) -> int:
        """In the part."""
        return self.nbytes + self.state_bytes


@dataclass(frozen=True)
class SavedTensor:
    """A tensor, or a table."""

    dtype: str
    shape: tuple[int, ...]
    """Of a table: of a row."""
    terms: str
    """How servers kept it, but for the policy."""
    is_table: bool = False
    row_bytes: int = 0
    """Of a table: of a saved row, with its id, versions and state."""
    pieces: tuple[SavedPiece, ...] = ()


@dataclass(frozen=True)
class SavedOwn:
    """What a rank has saved of its own, beside what all keep together."""

    file: str
    at: int
    nbytes: int
    crc: int
    """CRC32C of all its bytes."""


@dataclass(frozen=True)
class Manifest:
    """A checkpoint."""

    name: str
    """Of the store."""
    version: int
    """The least of its keys."""
    ranks: int
    tensors: Mapping[str, SavedTensor] = field(default_factory=dict)
    own: tuple[SavedOwn, ...] = ()
    """By rank; none: ranks have saved nothing of their own."""

    def files(self) -> set[str]:
        """Its parts."""
        pieces = {piece.file for one in self.tensors.values() for piece in one.pieces}
        return pieces | {one.file for one in self.own}


class SavedPartWriter:
    """One rank's part. What is written is on the disk after `close`."""

    def __init__(self, folder: Path, file: str) -> None:
        self.file = file
        self._path = folder / file
        self._at = 0
        with told(self._path):
            self._out: BinaryIO = self._path.open("wb")

    def write(self, chunks: Iterable[Buffer]) -> tuple[int, int]:
        """Appends chunks: where they begin, and the CRC32C of all."""
        begin, crc = self._at, 0
        with told(self._path):
            for chunk in chunks:
                self._out.write(chunk)
                crc = crc32c(chunk, crc)
                self._at += len(chunk)
        return begin, crc

    def close(self) -> None:
        """Raises SystemCallError where the disk is full."""
        with told(self._path):
            self._out.flush()
            os.fsync(self._out.fileno())
            self._out.close()

    def drop(self) -> None:
        """It is not wanted."""
        with suppress(OSError):  # what could not be written is not wanted either
            self._out.close()
        self._path.unlink(missing_ok=True)


def read_piece(folder: Path, piece: SavedPiece) -> memoryview:
    """Its bytes. Raises CorruptError, naming the file, where they are not those that were written."""
    return read_own(folder, SavedOwn(piece.file, piece.at, piece.length, piece.crc))


def read_own(folder: Path, own: SavedOwn) -> memoryview:
    """As `read_piece`."""
    path = folder / own.file
    try:
        with path.open("rb") as part:
            part.seek(own.at)
            data = part.read(own.nbytes)
    except FileNotFoundError:
        raise CorruptError(f"{path} is missing: the checkpoint can't be restored; use another") from None
    except OSError as error:
        raise SystemCallError(f"{path}: {error.strerror}", operation="restore") from error
    if len(data) < own.nbytes:
        raise CorruptError(f"{path} ends at byte {own.at + len(data)}, before {own.at + own.nbytes}: it was cut")
    if crc32c(data) != own.crc:
        raise CorruptError(f"{path}: bytes {own.at} to {own.at + own.nbytes} fail their checksum")
    return memoryview(data)


@dataclass(frozen=True)
class Index:
    """What a rank has written: rank 0 puts it into the manifest."""

    pieces: Mapping[str, Sequence[SavedPiece]]
    """By tensor."""
    own: SavedOwn | None = None


def write_index(folder: Path, file: str, index: Index) -> None:
    """Beside the part."""
    pieces = {name: [asdict(one) for one in some] for name, some in index.pieces.items()}
    write_checked(folder / file, _INDEX, {"pieces": pieces, "own": None if index.own is None else asdict(index.own)})


def read_index(folder: Path, file: str) -> Index:
    """The same."""
    found = read_checked(folder / file, _INDEX)
    pieces = {name: [_piece(one) for one in some] for name, some in found["pieces"].items()}
    return Index(pieces, None if found["own"] is None else SavedOwn(**found["own"]))


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """From here on the checkpoint is there, in place of the one before."""
    tensors = {name: asdict(one) for name, one in manifest.tensors.items()}
    own = [asdict(one) for one in manifest.own]
    body = {"name": manifest.name, "version": manifest.version, "ranks": manifest.ranks, "tensors": tensors, "own": own}
    write_checked(folder / MANIFEST, _FORMAT, body)


def read_manifest(folder: Path) -> Manifest:
    """The checkpoint in a directory. Raises CorruptError where there is none, or it isn't whole."""
    path = folder / MANIFEST
    found = read_checked(path, _FORMAT)
    try:
        tensors = {name: _tensor(one) for name, one in found["tensors"].items()}
        own = tuple(SavedOwn(**one) for one in found["own"])
        return Manifest(found["name"], found["version"], found["ranks"], tensors, own)
    except (KeyError, TypeError, AttributeError) as error:
        raise CorruptError(f"{path} is not the manifest of a checkpoint: {error}") from None


def remove_others(folder: Path, kept: set[str], prefix: str) -> None:
    """Parts of earlier checkpoints, or of some that were never finished."""
    for path in folder.glob(f"{prefix}*"):
        if path.name not in kept:
            path.unlink(missing_ok=True)


def _tensor(found: dict[str, Any]) -> SavedTensor:
    pieces = tuple(_piece(one) for one in found.pop("pieces"))
    return SavedTensor(**{**found, "shape": tuple(found["shape"])}, pieces=pieces)


def _piece(found: dict[str, Any]) -> SavedPiece:
    return SavedPiece(**{**found, "clocks": tuple(found["clocks"])})
