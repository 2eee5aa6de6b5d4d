"""The file of one process: chunks, each whole or ignored, so that a process may end at any moment.

A chunk is a letter, its length (4 bytes, little endian) and that many bytes. N: native records. J: a JSON object,
`{"what": ...}`: "process" (host, pid), "clock" (offset and error in ns), "names" (partitions by key, groups by lane),
"texts" (from number `first` on), "events" (of Python), "lost" (records).
"""

from __future__ import annotations

import json
import logging
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

SUFFIX = ".part"
FIRST = b"BPLT1\n"
MOST_BYTES = 64 << 20
"""Of one process's file: a million records, more than a viewer shows."""
_HEAD = struct.Struct("<cI")


class PartWriter:
    """Writes one file in `directory`. What goes wrong is a warning, once, and the end of the recording; no error."""

    def __init__(self, directory: Path, most_bytes: int = MOST_BYTES) -> None:
        self._left = most_bytes
        self._descriptor = -1
        self.path = directory / f"{socket.gethostname()}-{os.getpid()}{SUFFIX}"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            if os.fstat(self._descriptor).st_size == 0:
                self._put(FIRST)
        except OSError as error:
            self._give_up(f"can't be written: {error.strerror}")

    @property
    def open(self) -> bool:
        """Whether anything more will be written."""
        return self._descriptor >= 0

    def records(self, payload: bytes) -> None:
        """Native records."""
        self._chunk(b"N", payload)

    def json(self, what: str, **fields: Any) -> None:
        """Everything else."""
        self._chunk(b"J", json.dumps({"what": what, **fields}, separators=(",", ":")).encode())

    def close(self) -> None:
        """Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _chunk(self, kind: bytes, payload: bytes) -> None:
        if not self.open:
            return
        if len(payload) > self._left:
            self._give_up(f"has reached its largest size; use trace_steps to record fewer steps than {SUFFIX} holds")
            return
        try:
            self._put(_HEAD.pack(kind, len(payload)) + payload)
        except OSError as error:
            self._give_up(f"can't be written any more: {error.strerror}")

    def _put(self, data: bytes) -> None:
        self._left -= len(data)
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]

    def _give_up(self, why: str) -> None:
        log.warning("the timeline %s %s; this process stops recording, the job continues", self.path, why)
        self.close()


def read_chunks(path: Path) -> Iterator[tuple[str, Any]]:
    """("N", bytes) and ("J", dict) of a part, up to where its process was cut off. Raises OSError."""
    data = path.read_bytes()
    if not data.startswith(FIRST):
        return
    at = len(FIRST)
    while at + _HEAD.size <= len(data):
        kind, length = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        payload = data[at : at + length]
        at += length
        if len(payload) < length:
            return
        yield (kind.decode(), json.loads(payload)) if kind == b"J" else (kind.decode(), payload)
