"""What the native core's records tell, and of whom: csrc/base/trace.h."""

from __future__ import annotations

from enum import IntEnum


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
    HELD_UP = 14
    LEFT_OUT = 15


AWAITED = ("first value", "reading", "version", "policy")
"""What a rank waits for at a key whose value servers keep, as Awaited of server/store/figures.h: the first value, which
another rank is to set; to read, as the policy lets it; its contribution, for others of which a version is made with it;
that all ranks have asked for another policy."""
NO_RANK = 0xFFFFFFFF
"""In place of one: a time that has come."""


SERVERS = 1000
"""Members are workers by rank, then servers from this number on; the same numbers are a trace's process ids."""
SCHEDULER = 2000


def member_name(member: int) -> str:
    """ "rank 0", "server 1" or "scheduler"."""
    if member >= SCHEDULER:
        return "scheduler"
    return f"server {member - SERVERS}" if member >= SERVERS else f"rank {member}"
