"""The native core's records as NumPy sees them: csrc/base/trace.h."""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class RecordKind(IntEnum):
    """What a record tells; csrc/base/trace.h says what its fields mean."""

    READY = 0
    QUEUED = 1
    SENT = 2
    RECEIVED = 3
    ARRIVED = 4
    SUMMED = 5
    RETURNED = 6
    CALL = 7
    STEP = 8
    WAIT = 9
    ENCODED = 10
    DECODED = 11
    DOWN = 12
    UP = 13


SERVERS = 1000
"""Members are workers by rank, then servers from this number on; the same numbers are a trace's process ids."""
SCHEDULER = 2000

RECORD = np.dtype(
    [
        ("kind", "u1"), ("detail", "u1"), ("reserved", "u2"), ("thread", "u4"), ("begin", "i8"), ("duration", "i8"),
        ("key", "u8"), ("bytes", "u8"), ("round", "u4"), ("priority", "i4"), ("member", "u4"), ("peer", "u4"),
        ("text", "u4"), ("step", "u4"),
    ]
)  # fmt: skip
assert RECORD.itemsize == 64


def member_name(member: int) -> str:
    """ "rank 0", "server 1" or "scheduler"."""
    if member >= SCHEDULER:
        return "scheduler"
    return f"server {member - SERVERS}" if member >= SERVERS else f"rank {member}"
