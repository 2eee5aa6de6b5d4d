"""Ports for processes that a test is about to start: nobody else gets them meanwhile."""

from __future__ import annotations

import socket


class HeldPorts:
    """So many of 127.0.0.1, until `close`. Linux lets sockets that ask for it, as those of servers do, share an address
    of which only one listens."""

    def __init__(self, count: int = 1) -> None:
        self._sockets = [socket.socket() for _ in range(count)]
        for one in self._sockets:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(("127.0.0.1", 0))
        self.numbers = [int(one.getsockname()[1]) for one in self._sockets]

    def close(self) -> None:
        """Idempotent."""
        for one in self._sockets:
            one.close()
