"""Names of operations in flight. All ranks must come to the same name for the same call, without asking each other."""

from __future__ import annotations

import threading

from byteps_like.errors import InvalidArgumentError


class NameTable:
    """Which names are in flight. Thread-safe.

    An operation without a name gets `signature#slot`, with the lowest slot that is free. Ranks that start and
    synchronize their operations in the same order so meet under the same names, and there are never more names than
    operations were once in flight together. A slot is freed by `release`, which `synchronize` calls.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._in_flight: set[str] = set()

    def claim(self, kind: str, name: str | None, signature: str) -> str:
        """The full name for a new operation. Raises InvalidArgumentError if the user's `name` is in flight."""
        with self._lock:
            full = f"{kind}.{name}" if name is not None else self._free_slot(f"{kind}.unnamed.{signature}")
            if full in self._in_flight:
                raise InvalidArgumentError(
                    f"an operation named {name!r} is in flight; synchronize() its handle first, or use another name",
                    key=full,
                )
            self._in_flight.add(full)
            return full

    def release(self, full: str) -> None:
        """The operation is over; its name may be used again."""
        with self._lock:
            self._in_flight.discard(full)

    def _free_slot(self, prefix: str) -> str:
        slot = 0
        while f"{prefix}#{slot}" in self._in_flight:
            slot += 1
        return f"{prefix}#{slot}"
