"""Messages of the portable door: how frames travel over ZeroMQ between a pure-Python worker and a server.

A message is an 8-byte envelope and up to two more parts (docs/reference/protocol.md, "The portable door"):

    HELLO    envelope, Hello                  worker -> door, first on every connection
    WELCOME  envelope, Welcome                door -> worker
    REFUSED  envelope, code and reason        door -> worker; nothing else follows
    FRAME    envelope, header, payload        either way, for the shard in the envelope
    PROBE    envelope                         door -> worker; ignored: finds out whether the peer is still there
    BYE      envelope                         worker -> door: the worker leaves in order
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from byteps_like.errors import BytePSLikeError, CorruptError, from_code
from byteps_like.wire.crc32c import Buffer

DOOR_VERSION = 2
PROTOCOL_VERSION = 2  # of frames and links; mirrors kProtocolVersion in csrc/transport/entrance/handshake.h
MAX_JOB_BYTES = 64
MAX_REASON_BYTES = 1024

_ENVELOPE = struct.Struct("<BBHI")
_HELLO = struct.Struct("<HHIIII16s64s")
_WELCOME = struct.Struct("<HHIIII")
_CODE = struct.Struct("<I")


class DoorKind(IntEnum):
    """What a door message is."""

    HELLO = 1
    WELCOME = 2
    REFUSED = 3
    FRAME = 4
    PROBE = 5
    BYE = 6


PARTS = {
    DoorKind.HELLO: 2,
    DoorKind.WELCOME: 2,
    DoorKind.REFUSED: 2,
    DoorKind.FRAME: 3,
    DoorKind.PROBE: 1,
    DoorKind.BYE: 1,
}


@dataclass(frozen=True, slots=True)
class Envelope:
    """First part of every message. `shard` means something in FRAME only."""

    kind: DoorKind
    shard: int = 0
    version: int = DOOR_VERSION

    def encode(self) -> bytes:
        """The 8 bytes."""
        return _ENVELOPE.pack(self.kind, self.version, self.shard, 0)


@dataclass(frozen=True, slots=True)
class Hello:
    """Who wants in to which server, by member number, and what it believes of the job."""

    job: str
    incarnation: bytes
    view: int
    member: int
    server: int
    world_size: int
    protocol: int = PROTOCOL_VERSION

    def encode(self) -> bytes:
        """The 100 bytes of the body. Raises ValueError for a job name that doesn't fit."""
        job = self.job.encode()
        if len(job) > MAX_JOB_BYTES:
            raise ValueError(f"job name of {len(job)} bytes; at most {MAX_JOB_BYTES} fit")
        return _HELLO.pack(
            self.protocol, 0, self.view, self.member, self.server, self.world_size, self.incarnation, job
        )


@dataclass(frozen=True, slots=True)
class Welcome:
    """What the server is: `segment` is the most bytes of payload per frame, `window` the most unanswered ones."""

    view: int
    shards: int
    segment: int
    window: int
    protocol: int = PROTOCOL_VERSION

    def encode(self) -> bytes:
        """The 20 bytes of the body."""
        return _WELCOME.pack(self.protocol, self.shards, self.view, self.segment, self.window, 0)


def decode_envelope(parts: list[Buffer]) -> Envelope:
    """The envelope of a message, its number of parts checked. Raises CorruptError.

    A version other than ours is returned as it came, unchecked further: the caller answers it by name.
    """
    if not parts or len(parts[0]) != _ENVELOPE.size:
        raise CorruptError("door message without an 8-byte envelope")
    kind, version, shard, _ = _ENVELOPE.unpack(parts[0])
    try:
        envelope = Envelope(DoorKind(kind), shard, version)
    except ValueError:
        raise CorruptError(f"door message of unknown kind {kind}") from None
    if version == DOOR_VERSION and len(parts) != PARTS[envelope.kind]:
        raise CorruptError(f"{envelope.kind.name} message has {len(parts)} parts, not {PARTS[envelope.kind]}")
    return envelope


def decode_hello(body: Buffer) -> Hello:
    """Raises CorruptError for a body that is none."""
    protocol, _, view, member, server, world_size, incarnation, job = _unpack(_HELLO, body, "HELLO")
    try:
        name = job.rstrip(b"\0").decode()
    except UnicodeDecodeError:
        raise CorruptError("HELLO names a job in bytes that are not UTF-8") from None
    return Hello(name, incarnation, view, member, server, world_size, protocol)


def decode_welcome(body: Buffer) -> Welcome:
    """Raises CorruptError for a body that is none."""
    protocol, shards, view, segment, window, _ = _unpack(_WELCOME, body, "WELCOME")
    if shards == 0 or segment == 0:
        raise CorruptError(f"WELCOME offers {shards} shards and segments of {segment} bytes")
    return Welcome(view, shards, segment, window, protocol)


def encode_refusal(error: BytePSLikeError) -> bytes:
    """Body of REFUSED: the error's code and text, cut to MAX_REASON_BYTES."""
    return _CODE.pack(error.code) + str(error).encode()[:MAX_REASON_BYTES]


def decode_refusal(body: Buffer) -> BytePSLikeError:
    """The typed error in a REFUSED body."""
    if len(body) < _CODE.size:
        raise CorruptError("REFUSED message without a code")
    (code,) = _CODE.unpack(memoryview(body)[: _CODE.size])
    return from_code(code, bytes(memoryview(body)[_CODE.size :]).decode(errors="replace"))


def _unpack(layout: struct.Struct, body: Buffer, what: str) -> tuple[Any, ...]:
    if len(body) != layout.size:
        raise CorruptError(f"{what} body has {len(body)} bytes, not {layout.size}")
    return layout.unpack(body)
