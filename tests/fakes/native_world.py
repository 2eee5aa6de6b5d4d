"""Worlds of ranks as threads of this process, over the native core's own links: what is really sent is counted."""

from __future__ import annotations

import secrets
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch

from byteps_like.collectives.api import Group
from byteps_like.collectives.communicator import Communicator
from byteps_like.config import Config
from byteps_like.torch.job import runtime
from byteps_like.worker.api import SharedMemory
from byteps_like.worker.collective import CollectiveWorker
from byteps_like.worker.standing import ALONE, Standing, Stands

DEADLINE = 60.0


class _Base(Stands):
    """One rank: what a CollectiveWorker stands on."""

    seal_key = bytes(range(32))
    standing = ALONE

    def __init__(self, rank: int, size: int, communicator: Communicator, barrier: threading.Barrier) -> None:
        self.standing = Standing(rank, tuple(range(1, size + 1)), rank, size)
        self._communicator, self._barrier = communicator, barrier

    def group(self, name: str, ranks: Sequence[int] | None = None) -> Group:
        return self._communicator.group(name, ranks)

    def empty_shared(self, nbytes: int) -> SharedMemory:
        return self._communicator.empty_shared(nbytes)

    def note_route(self, name: str) -> None:
        pass

    def barrier(self, timeout: float | None = None) -> None:
        self._barrier.wait(timeout or DEADLINE)

    def stats(self) -> dict[str, int]:
        return self._communicator.counters()

    def close(self) -> None:
        pass


def run_native_world(
    size: int, body: Callable[..., Any], *args: Any, partition_bytes: int = 1 << 20, **settings: Any
) -> list[Any]:
    """Runs `body(bps, rank, size, *args)` on every rank; their results. TCP on loopback, unless `settings` differ."""
    import byteps_like.torch as bps

    config = Config.from_env({}, **{"transport": "tcp", "host": "127.0.0.1", "stall_timeout": 30.0, **settings})
    job, secret = f"threads-{secrets.token_hex(4)}", secrets.token_bytes(32)
    made = [Communicator(config, job, secret) for _ in range(size)]
    for rank, communicator in enumerate(made):
        communicator.join(1, rank, [one.own for one in made])
    results: list[Any] = [None] * size
    failures: list[str] = []
    barrier = threading.Barrier(size)

    def main(rank: int) -> None:
        torch.set_num_threads(1)
        base = _Base(rank, size, made[rank], barrier)
        try:
            with runtime.bound(CollectiveWorker(base, partition_bytes)):
                results[rank] = body(bps, rank, size, *args)
                barrier.wait(DEADLINE)
        except Exception:  # noqa: BLE001 - shown below
            failures.append(f"--- rank {rank} ---\n{traceback.format_exc()}")
            barrier.abort()

    threads = [threading.Thread(target=main, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    for communicator in made:
        communicator.close()
    assert not failures, "\n".join(failures)
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"
    return results
