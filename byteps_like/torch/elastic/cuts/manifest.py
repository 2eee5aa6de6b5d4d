"""The directory of a cut: its files, and the manifest that names them all, which is renamed to its place last.

A directory without a manifest is no cut. docs/how-to/cuts.md describes the files.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from byteps_like.errors import CorruptError, SystemCallError
from byteps_like.store.saving.files import read_checked, sync_folder, told, write_checked
from byteps_like.wire.crc32c import crc32c

MANIFEST = "manifest.json"
_KIND = "byteps_like cut"
_NAME = re.compile(r"cut-(\d{8,})")
_CHUNK = 1 << 20


@dataclass(frozen=True)
class FilePart:
    """A file of a cut, as it was written."""

    nbytes: int
    crc: int
    """CRC32C of all its bytes."""


@dataclass(frozen=True)
class CutManifest:
    """A cut."""

    number: int
    ranks: int
    """That have written it."""
    kept: tuple[str, ...]
    """What servers kept: the names of directories below KEPT, each a checkpoint with a manifest of its own."""
    files: Mapping[str, FilePart]
    """By their paths in the cut's directory: all but the manifest itself."""


def folder_of(directory: Path, number: int) -> Path:
    """Where the cut of that number is, or would be."""
    return directory / f"cut-{number:08}"


def numbers(directory: Path) -> list[int]:
    """Of the cuts there, ascending, whether or not they have ever become whole. Raises SystemCallError."""
    try:
        names = [path.name for path in directory.iterdir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise SystemCallError(f"{directory}: {error.strerror}", operation="cut") from error
    return sorted(int(found[1]) for found in map(_NAME.fullmatch, names) if found)


def is_there(folder: Path) -> bool:
    """Whether a directory is a cut: whether it has a manifest."""
    return (folder / MANIFEST).exists()


def newest(directory: Path) -> Path | None:
    """The newest cut there; None: there is none."""
    return _last(directory, numbers(directory))


def before(folder: Path) -> Path | None:
    """The newest cut that is older than this one; None: there is none."""
    older = [number for number in numbers(folder.parent) if folder_of(folder.parent, number).name < folder.name]
    return _last(folder.parent, older)


def _last(directory: Path, numbers: Sequence[int]) -> Path | None:
    found = (folder_of(directory, number) for number in reversed(numbers))
    return next((folder for folder in found if is_there(folder)), None)


def described(path: Path) -> FilePart:
    """A file as it is now. Raises CorruptError where it is missing, SystemCallError where it can't be read."""
    nbytes = crc = 0
    try:
        with path.open("rb") as opened:
            while chunk := opened.read(_CHUNK):
                nbytes, crc = nbytes + len(chunk), crc32c(chunk, crc)
    except FileNotFoundError:
        raise CorruptError(f"{path} is missing") from None
    except OSError as error:
        raise SystemCallError(f"{path}: {error.strerror}", operation="cut") from error
    return FilePart(nbytes, crc)


def check(folder: Path, file: str, part: FilePart) -> None:
    """Raises CorruptError, with the file and what is wrong with it, unless it is as it was written."""
    path, found = folder / file, described(folder / file)
    if found.nbytes != part.nbytes:
        raise CorruptError(
            f"{path} has {found.nbytes} bytes, and was written with {part.nbytes}: it was cut or changed"
        )
    if found.crc != part.crc:
        raise CorruptError(f"{path} fails its checksum: bytes of it were changed")


def write_manifest(folder: Path, manifest: CutManifest) -> None:
    """From here on the cut is there. All its files, and their directories, are on the disk then. Raises
    SystemCallError."""
    for place in sorted({(folder / file).parent for file in manifest.files} | {folder.parent}):
        sync_folder(place)
    files = {name: [part.nbytes, part.crc] for name, part in sorted(manifest.files.items())}
    body = {"number": manifest.number, "ranks": manifest.ranks, "kept": list(manifest.kept), "files": files}
    write_checked(folder / MANIFEST, _KIND, body)


def read_manifest(folder: Path) -> CutManifest:
    """Raises CorruptError where there is none, or it is damaged."""
    found = read_checked(folder / MANIFEST, _KIND)
    files = {name: FilePart(nbytes, crc) for name, (nbytes, crc) in found["files"].items()}
    return CutManifest(found["number"], found["ranks"], tuple(found["kept"]), files)


def remove(folder: Path) -> None:
    """It is no cut from the first moment on. Raises SystemCallError."""
    with told(folder):
        (folder / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)


def keep_newest(directory: Path, newest: int, keep: int) -> None:
    """Removes what is older than cut `newest`, but for `keep` - 1 cuts, and what has never become one."""
    older = [number for number in numbers(directory) if number < newest]
    whole = [number for number in older if is_there(folder_of(directory, number))]
    kept = set(whole[max(0, len(whole) - keep + 1) :])
    for number in older:
        if number not in kept:
            remove(folder_of(directory, number))
