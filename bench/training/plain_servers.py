"""A parameter server without a scheduler, as frameworks have it: the baseline that ByteScheduler's papers compare to.

Each tensor is pushed whole when its gradient is ready, first in first out, summed when it is there from all workers,
and then returned whole; the step ends when all are back. Threads and TCP sockets, nothing of this project. No tensor
makes one server the bottleneck: each is cut evenly over all servers, unless it is small.

    python -m bench.training.plain_servers ADDRESS WORKERS      a server: prints its port, ends with the lab
"""

from __future__ import annotations

import argparse
import contextlib
import queue
import socket
import struct
import threading
from collections.abc import Sequence

import numpy as np
import torch

HEADER = struct.Struct("!II")  # key, bytes
SMALL = 1 << 14  # bytes of a tensor that goes to one server
PATIENCE = 60.0


def receive_into(link: socket.socket, view: memoryview) -> None:
    """Raises ConnectionError at the end of the stream."""
    while view:
        if not (count := link.recv_into(view)):
            raise ConnectionError("the peer has closed the link")
        view = view[count:]


def receive_header(link: socket.socket) -> tuple[int, int]:
    """Key and bytes of what follows."""
    header = bytearray(HEADER.size)
    receive_into(link, memoryview(header))
    key, nbytes = HEADER.unpack(header)
    return key, nbytes


class Outbox:
    """Sends what is put, in that order, from a thread of its own."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._waiting: queue.SimpleQueue[tuple[int, memoryview]] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def put(self, key: int, payload: memoryview) -> None:
        """`payload` stays unchanged until the answer has come."""
        self._waiting.put((key, payload))

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                key, payload = self._waiting.get()
                self._link.sendall(HEADER.pack(key, payload.nbytes))
                self._link.sendall(payload)


class Session:
    """The server's side of one training: sums what comes by `links`, one to each worker."""

    def __init__(self, links: Sequence[socket.socket]) -> None:
        self._outboxes = [Outbox(link) for link in links]
        self._lock = threading.Lock()
        self._sums: dict[int, tuple[int, np.ndarray]] = {}
        for link in links:
            threading.Thread(target=self._serve, args=(link,), daemon=True).start()

    def _serve(self, link: socket.socket) -> None:
        with contextlib.suppress(OSError), link:
            while True:
                key, nbytes = receive_header(link)
                payload = np.empty(nbytes // 4, np.float32)
                receive_into(link, memoryview(payload).cast("B"))
                self._count(key, payload)

    def _count(self, key: int, payload: np.ndarray) -> None:
        with self._lock:
            count, total = self._sums.pop(key, (0, None))
            total = payload if total is None else np.add(total, payload, out=total)
            if count + 1 < len(self._outboxes):
                self._sums[key] = count + 1, total
                return
        for outbox in self._outboxes:
            outbox.put(key, memoryview(total).cast("B"))


class PlainServers:
    """The worker's side: an optimizer whose step() waits for the sums of all gradients, and averages them."""

    def __init__(self, optimizer: torch.optim.Optimizer, addresses: Sequence[str], size: int) -> None:
        self._optimizer, self._size = optimizer, size
        self._parameters = [item for group in optimizer.param_groups for item in group["params"]]
        self._links = [_connect(address) for address in addresses]
        self._outboxes = [Outbox(link) for link in self._links]
        self._landing: dict[int, memoryview] = {}
        self._landed = threading.Semaphore(0)
        self._sent = 0
        for link in self._links:
            threading.Thread(target=self._receive, args=(link,), daemon=True).start()
        for number, parameter in enumerate(self._parameters):
            parameter.register_post_accumulate_grad_hook(lambda tensor, number=number: self._push(number, tensor))

    def _push(self, number: int, parameter: torch.Tensor) -> None:
        """The part of server s has the key number * servers + s."""
        assert parameter.grad is not None
        payload = memoryview(parameter.grad.view(-1).numpy()).cast("B")
        count = len(self._links)
        spread = payload.nbytes >= SMALL
        step = -(-payload.nbytes // count // 4) * 4 if spread else payload.nbytes
        for place, begin in enumerate(range(0, payload.nbytes, step)):
            server = place if spread else number % count
            key = number * count + server
            self._landing[key] = payload[begin : begin + step]
            self._sent += 1
            self._outboxes[server].put(key, self._landing[key])

    def _receive(self, link: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                key, _ = receive_header(link)
                receive_into(link, self._landing[key])
                self._landed.release()

    def step(self) -> None:
        """Waits, averages, updates."""
        for _ in range(self._sent):
            if not self._landed.acquire(timeout=PATIENCE):
                raise TimeoutError(f"a sum has not come for {PATIENCE} s")
        self._sent = 0
        for parameter in self._parameters:
            parameter.grad.div_(self._size)
        self._optimizer.step()

    def zero_grad(self) -> None:
        """As the plain optimizer's."""
        self._optimizer.zero_grad()

    def close(self) -> None:
        """Leaves the servers."""
        for link in self._links:
            link.shutdown(socket.SHUT_RDWR)
            link.close()


def _connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    link = socket.create_connection((host, int(port)), timeout=PATIENCE)
    link.settimeout(None)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return link


def serve(address: str, workers: int) -> None:
    """One session after the other, for ever."""
    with socket.create_server((address, 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            Session([listener.accept()[0] for _ in range(workers)])


def main() -> None:
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__.split("\n", 1)[0])
    parser.add_argument("address", help="where it listens, on a free port that it prints")
    parser.add_argument("workers", type=int, help="of each training")
    arguments = parser.parse_args()
    serve(arguments.address, arguments.workers)


if __name__ == "__main__":
    main()
