"""Small files of JSON that are there whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from byteps_like.errors import CorruptError, SystemCallError
from byteps_like.wire.crc32c import crc32c

LAYOUT = 1
"""Of all these files; another one is for a release that can't read these."""


@contextmanager
def told(path: Path) -> Iterator[None]:
    """Raises SystemCallError, with the path, for what the operating system refuses within."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise SystemCallError(f"{error.filename or path}: {reason}", operation="checkpoint") from error


def write_checked(path: Path, kind: str, body: Mapping[str, Any]) -> None:
    """Writes `body` with its checksum. `kind`: what such files are called, which `read_checked` compares. Raises
    SystemCallError."""
    _replace(path, {"format": kind, "layout": LAYOUT, "crc32c": _checksum(body), **body})


def read_checked(path: Path, kind: str) -> dict[str, Any]:
    """What was written, as JSON has it. Raises CorruptError, naming the file, where it isn't that."""
    found = _read(path)
    if (found.pop("format", None), found.pop("layout", None)) != (kind, LAYOUT):
        raise CorruptError(f"{path} is no {kind} that this release can read")
    if found.pop("crc32c", None) != _checksum(found):
        raise CorruptError(f"{path} fails its checksum")
    return found


def sync_folder(folder: Path) -> None:
    """Its entries are on the disk. Raises SystemCallError."""
    with told(folder):
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def _checksum(body: Mapping[str, Any]) -> int:
    return crc32c(json.dumps(body, sort_keys=True).encode())


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise CorruptError(f"{path} is missing: there is no checkpoint, or it was never finished") from None
    except OSError as error:
        raise SystemCallError(f"{path}: {error.strerror}", operation="restore") from error
    except ValueError as error:
        raise CorruptError(f"{path} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise CorruptError(f"{path} holds no JSON object")
    return found


def _replace(path: Path, body: Mapping[str, Any]) -> None:
    beside = path.with_name(path.name + ".new")
    with told(path):
        with beside.open("wb") as out:
            out.write(json.dumps(body, indent=1).encode())
            out.flush()
            os.fsync(out.fileno())
        beside.replace(path)
    sync_folder(path.parent)
