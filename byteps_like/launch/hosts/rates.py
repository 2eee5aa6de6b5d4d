"""The measured rows of `byteps-like doctor --measure`: memory and loopback TCP, under a second each."""

from __future__ import annotations

import socket
import threading
import time

import numpy as np

from byteps_like.launch.hosts.host import Finding, Grade

_BLOCK = 64 << 20
_LOOPBACK_SECONDS = 0.5


def streaming() -> Finding:
    """The rate of `a += b` on 64 MiB, one thread: three bytes move for each byte summed."""
    a, b = np.ones(_BLOCK // 4, np.float32), np.ones(_BLOCK // 4, np.float32)
    best = min(_timed_add(a, b) for _ in range(5))
    return Finding("a += b, 64 MiB, one thread", Grade.OK, f"{3 * _BLOCK / best / 1e9:.1f} GB/s of memory traffic")


def _timed_add(
    a: np.ndarray[tuple[int], np.dtype[np.float32]], b: np.ndarray[tuple[int], np.dtype[np.float32]]
) -> float:
    start = time.perf_counter()
    np.add(a, b, out=a)
    return time.perf_counter() - start


def loopback() -> Finding:
    """What one TCP connection carries over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = threading.Thread(target=_send_for_a_while, args=(listener.getsockname(),), daemon=True)
        sender.start()
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(5)
            rate = _receive(connection)
        sender.join(5)
    return Finding("loopback TCP, one connection", Grade.OK, f"{rate / 1e9:.2f} GB/s")


def _send_for_a_while(address: tuple[str, int]) -> None:
    block = bytes(1 << 20)
    with socket.create_connection(address, timeout=5) as connection:
        end = time.perf_counter() + _LOOPBACK_SECONDS
        while time.perf_counter() < end:
            connection.sendall(block)


def _receive(connection: socket.socket) -> float:
    block = memoryview(bytearray(1 << 20))
    total, start = 0, time.perf_counter()
    while count := connection.recv_into(block):
        total += count
    return total / (time.perf_counter() - start)


ROWS = (streaming, loopback)
