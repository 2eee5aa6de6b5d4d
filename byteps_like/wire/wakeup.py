"""Wakes a thread that sleeps in a poller."""

from __future__ import annotations

import contextlib
import socket


class Wakeup:
    """A descriptor that becomes readable by `set`. `set` may be called from any thread, the rest by the sleeper."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def fileno(self) -> int:
        """What to poll for reading."""
        return self._reader.fileno()

    def set(self) -> None:
        """Makes the descriptor readable; never blocks. Does nothing once closed."""
        with contextlib.suppress(BlockingIOError, OSError):  # full: it is readable anyway; closed: nobody sleeps
            self._writer.send(b"\0")

    def clear(self) -> None:
        """Makes it unreadable again."""
        with contextlib.suppress(BlockingIOError):
            while len(self._reader.recv(4096)) == 4096:
                pass

    def close(self) -> None:
        """Frees both descriptors."""
        self._reader.close()
        self._writer.close()
