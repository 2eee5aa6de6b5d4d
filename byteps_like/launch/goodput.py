"""Measures what a line carries: payload bytes per second of one TCP connection.

The sender hands 1 MB blocks to the kernel by sendfile, the receiver takes them into one window that stays in cache,
so that the line and not memory is the limit. Both are run by `Lab.goodput`; by hand:

    python -m byteps_like.launch.goodput receive 10.77.0.2 1.0      prints the port, then bytes per second
    python -m byteps_like.launch.goodput send 10.77.0.2 <port>
"""

from __future__ import annotations

import os
import socket
import sys
import time

BLOCK = 1 << 20
WARM_UP = 0.2
PATIENCE = 10.0


def receive(address: str, seconds: float) -> float:
    """Takes bytes for `seconds` after a warm-up (congestion window, token buckets); returns bytes per second."""
    with socket.create_server((address, 0)) as listener:
        listener.settimeout(PATIENCE)
        print(listener.getsockname()[1], flush=True)
        connection, _ = listener.accept()
    with connection:
        connection.settimeout(PATIENCE)
        window = memoryview(bytearray(BLOCK))
        _receive_until(connection, window, time.perf_counter() + WARM_UP)
        start = time.perf_counter()
        received, end = _receive_until(connection, window, start + seconds)
    return received / (end - start)


def _receive_until(connection: socket.socket, window: memoryview, deadline: float) -> tuple[int, float]:
    received = 0
    while (now := time.perf_counter()) < deadline:
        count = connection.recv_into(window)
        if count == 0:
            raise ConnectionError("the sender ended before the receiver")
        received += count
    return received, now


def send(address: str, port: int) -> None:
    """Sends until the receiver has had enough."""
    descriptor = os.memfd_create("goodput")
    try:
        os.ftruncate(descriptor, BLOCK)
        with socket.create_connection((address, port), PATIENCE) as connection:
            connection.setblocking(True)
            while True:
                _send_block(connection, descriptor)
    except (ConnectionResetError, BrokenPipeError):
        pass  # how the receiver ends
    finally:
        os.close(descriptor)


def _send_block(connection: socket.socket, descriptor: int) -> None:
    offset = 0
    while offset < BLOCK:
        offset += os.sendfile(connection.fileno(), descriptor, offset, BLOCK - offset)


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        print(receive(sys.argv[2], float(sys.argv[3])))
    else:
        send(sys.argv[2], int(sys.argv[3]))
