"""A TCP proxy: its address stays, what stands behind it may change, and it may reset all its connections."""

from __future__ import annotations

import selectors
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: to close is to reset


class Firewall:
    """Forwards the connections that come to its `address` to another one on loopback ("127.0.0.1:4711", or a URL)."""

    def __init__(self, address: str) -> None:
        self.point_to(address)
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._resets = False
        self.reset = 0
        """Connections that were reset."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def point_to(self, address: str) -> None:
        """Where new connections go from now on."""
        self._target = "127.0.0.1", int(address.rpartition(":")[2])

    @contextmanager
    def resetting(self) -> Iterator[None]:
        """For the length of a block."""
        with self._lock:
            self._resets = True
            for end in self._open:
                _reset(end)
            self.reset += len(self._open) // 2
        try:
            yield
        finally:
            with self._lock:
                self._resets = False

    def close(self) -> None:
        """Nobody comes in any more."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        with client:
            try:
                server = socket.create_connection(self._target)
            except OSError:
                _reset(client)  # nobody is there
                return
            with server:
                if self._lets_through(client, server):
                    _carry(client, server)
                    with self._lock:
                        self._open -= {client, server}

    def _lets_through(self, client: socket.socket, server: socket.socket) -> bool:
        with self._lock:
            if self._resets:
                self.reset += 1
                _reset(client)
                return False
            self._open |= {client, server}
            return True


def _carry(client: socket.socket, server: socket.socket) -> None:
    """To the end of either."""
    with selectors.DefaultSelector() as selector:
        selector.register(client, selectors.EVENT_READ, server)
        selector.register(server, selectors.EVENT_READ, client)
        while True:
            for key, _ in selector.select():
                try:
                    data = key.fileobj.recv(65536)  # type: ignore[union-attr]
                    key.data.sendall(data)
                except OSError:
                    return
                if not data:
                    return


def _reset(end: socket.socket) -> None:
    """Whoever forwards it closes it: that is what resets it."""
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
    with suppress(OSError):  # it has ended
        end.shutdown(socket.SHUT_RD)
