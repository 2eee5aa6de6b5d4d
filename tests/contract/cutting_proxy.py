"""A TCP proxy that cuts its connections after a seeded number of bytes, a given number of times."""

from __future__ import annotations

import random
import selectors
import socket
import threading
from urllib.parse import urlsplit


class CuttingProxy:
    """Forwards loopback connections to `url` ("tcp://host:port"), one at a time per client; its own is `self.url`."""

    def __init__(self, url: str, seed: int, cuts: int, most_bytes: int) -> None:
        target = urlsplit(url)
        self._target = (target.hostname, target.port)
        self._random = random.Random(seed)
        self._most_bytes = most_bytes
        self.cuts_left = cuts
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
            except OSError:
                return
            threading.Thread(target=self._forward, args=(client, server), daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        allowance = self._random.randrange(self._most_bytes) if self.cuts_left > 0 else None
        with client, server, selectors.DefaultSelector() as selector:
            selector.register(client, selectors.EVENT_READ, server)
            selector.register(server, selectors.EVENT_READ, client)
            while allowance is None or allowance > 0:
                for key, _ in selector.select():
                    data = _receive(key.fileobj)
                    if not data:
                        return
                    key.data.sendall(data)
                    allowance = allowance - len(data) if allowance is not None else None
            self.cuts_left -= 1


def _receive(source: socket.socket) -> bytes:
    try:
        return source.recv(65536)
    except ConnectionError:
        return b""
