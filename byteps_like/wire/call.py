"""What the frame CALL carries: a function that a server is to run on what it keeps of some tensors, and the numbers
that come of it. Mirrors csrc/wire/call.h.

The layouts are in docs/reference/protocol.md.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from byteps_like.errors import CorruptError, InvalidArgumentError
from byteps_like.wire.crc32c import Buffer

MAX_CALL = 1024
"""Bytes."""
TENSOR_SHIFT = 16
"""The key of a partition is its tensor's number times two to this, plus its own number."""
_MAX_NAME = 64


@dataclass(frozen=True)
class ServerCall:
    """A function, the numbers of the tensors that it is about, and scalars by name."""

    function: str
    tensors: Sequence[int]
    scalars: Mapping[str, float] = field(default_factory=dict)
    rows: tuple[int, int] | None = None
    """Where the tensors are tables, those of the first: ids from the first to before the second."""
    since: int = 0
    """Of these, only those of newer versions."""


def encode_call(call: ServerCall) -> bytes:
    """As it travels. Raises InvalidArgumentError for a name of more than 64 bytes, or more than 1,024 bytes in all."""
    head = bytes([min(len(call.tensors), 255), min(len(call.scalars), 255)]) + _named(call.function)
    tensors = struct.pack(f"<{len(call.tensors)}I", *call.tensors)
    scalars = b"".join(_named(name) + struct.pack("<d", value) for name, value in call.scalars.items())
    rows = b"" if call.rows is None else struct.pack("<3Q", *call.rows, call.since)
    if len(found := head + tensors + scalars + rows) > MAX_CALL:
        raise InvalidArgumentError(
            f"{call.function!r} on {len(call.tensors)} tensors with {len(call.scalars)} scalars takes {len(found)}"
            f" bytes: a call has at most {MAX_CALL}"
        )
    return found


def decode_figures(payload: Buffer) -> dict[str, float]:
    """The numbers of an answer, by name. Raises CorruptError for what is none."""
    found: dict[str, float] = {}
    data = bytes(payload)
    try:
        at = 1
        for _ in range(data[0]):
            end = at + 1 + data[at]
            name = data[at + 1 : end].decode()
            (found[name],) = struct.unpack_from("<d", data, end)
            at = end + 8
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise CorruptError(f"the answer to a call makes no sense: {error}") from None
    if at != len(data):
        raise CorruptError(f"the answer to a call has {len(data)} bytes, not {at}")
    return found


def _named(name: str) -> bytes:
    written = name.encode()
    if not 0 < len(written) <= _MAX_NAME:
        raise InvalidArgumentError(f"{name!r} is no name of 1 to {_MAX_NAME} bytes")
    return bytes([len(written)]) + written
