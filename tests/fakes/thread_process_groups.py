"""torch process groups of threads: byteps_like.torch's ProcessGroup over fakes.thread_group, one per thread."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch

from byteps_like.errors import BytePSLikeError
from byteps_like.torch.c10d.options import GroupOptions
from byteps_like.torch.c10d.process_group import GroupMembership, ProcessGroup
from byteps_like.worker.local import PrivateMemory
from tests.fakes.thread_group import DEADLINE, GroupWorld, ThreadGroup


class ThreadCommunicator:
    """One rank of a world of threads; see torch.rendezvous.C10dWorld."""

    def __init__(self, shared: GroupWorld, rank: int, size: int) -> None:
        self.rank, self.size, self.shared = rank, size, shared
        self.closed = False

    def group(self, name: str, ranks: Sequence[int] | None = None) -> ThreadGroup:
        return ThreadGroup(self.shared, name, tuple(ranks or range(self.size)), self.rank)

    def release(self, name: str) -> None:
        pass

    def fail(self, error: BytePSLikeError) -> None:
        self.shared.fail(error)

    def empty_shared(self, nbytes: int) -> PrivateMemory:
        return PrivateMemory(nbytes)

    def close(self) -> None:
        self.closed = True


def run_groups(
    size: int, body: Callable[..., Any], *args: Any, timeout: float = DEADLINE, options: GroupOptions | None = None
) -> list[Any]:
    """Runs `body(group, rank, size, *args)` on every rank; their results. Raises the first failure, naming its rank."""
    shared = GroupWorld()
    results: list[Any] = [None] * size
    failures: list[tuple[int, Exception, str]] = []

    def main(rank: int) -> None:
        torch.set_num_threads(1)
        world = ThreadCommunicator(shared, rank, size)
        membership = GroupMembership(world, "0", tuple(range(size)), timedelta(seconds=timeout), None, owns_world=True)
        try:
            results[rank] = body(ProcessGroup(membership, options), rank, size, *args)
        except Exception as error:  # noqa: BLE001 - raised below
            failures.append((rank, error, traceback.format_exc()))
            shared.fail(error)

    threads = [threading.Thread(target=main, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * DEADLINE)
    if failures:
        rank, error, text = failures[0]
        error.add_note(f"rank {rank} of {size} failed:\n{text}")
        raise error
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"
    return results
