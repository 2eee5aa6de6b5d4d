"""What torchft asks of a process group, by its own tests: every collective, and what follows when a rank has gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from parameterized import parameterized
from torch.distributed import AllreduceOptions, ReduceOp
from torchft import process_group_test as contract

import byteps_like.torch as bps
from byteps_like.torchft import ProcessGroupByteps

GONE = "|was shut down|was aborted|has ended"
"""What our errors say where torchft's tests list those of gloo and NCCL."""


class TestContract(contract.MultiPgBaseTest):  # type: ignore[misc]
    """Three ranks in threads."""

    BACKEND, WORLD_SIZE = "byteps", 3

    @classmethod
    def _create_pg(cls, backend: str) -> ProcessGroupByteps:
        assert backend == cls.BACKEND
        return ProcessGroupByteps(timeout=timedelta(seconds=20))

    def assertRaisesRegex(self, error: Any, regex: Any, *more: Any, **named: Any) -> Any:
        return super().assertRaisesRegex(error, regex + GONE, *more, **named)

    @parameterized.expand(contract._ALL_COLLECTIVES)
    def test_collective(self, collective: str) -> None:
        self._run_parallel(collective)

    @parameterized.expand(contract._ALL_COLLECTIVES)
    def test_collective_when_a_rank_has_gone(self, collective: str) -> None:
        self._run_with_resiliency(collective)


@pytest.fixture
def store() -> Any:
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def _each(count: int, call: Callable[[int], Any]) -> list[Any]:
    """What `call(rank)` returns or raises, each on a thread."""
    found: list[Any] = [None] * count

    def run(rank: int) -> None:
        try:
            found[rank] = call(rank)
        except Exception as error:  # noqa: BLE001 - for the test to see
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


def _sum(group: ProcessGroupByteps, value: float) -> list[float]:
    tensor = torch.full((4,), value)
    group.allreduce([tensor], AllreduceOptions()).wait()
    found: list[float] = tensor.tolist()
    return found


def test_a_world_of_one_does_all_calls(store: Any) -> None:
    group = ProcessGroupByteps()
    group.configure(f"127.0.0.1:{store.port}/one", "0", 0, 1)
    assert (group.size(), group.getBackendName()) == (1, "torchft-byteps")
    contract._test_pg(group, torch.tensor([2.0]))
    group.shutdown()
    group.shutdown()


def test_worlds_of_other_sizes_follow_each_other(store: Any) -> None:
    groups = [ProcessGroupByteps(timeout=timedelta(seconds=20)) for _ in range(3)]

    def run(rank: int) -> list[list[float]]:
        found = []
        for size in (3, 2, 3):
            if rank < size:
                groups[rank].configure(f"127.0.0.1:{store.port}/{len(found)}/{size}", "0", rank, size, 7)
                found.append(_sum(groups[rank], float(rank + 1)))
            elif rank == 2:
                found.append([])
        return found

    found = _each(3, run)
    assert found == [[[6.0] * 4, [3.0] * 4, [6.0] * 4]] * 2 + [[[6.0] * 4, [], [6.0] * 4]]
    for group in groups:
        group.shutdown()


def test_abort_ends_what_another_thread_waits_for(store: Any) -> None:
    groups = [ProcessGroupByteps(timeout=timedelta(seconds=30)) for _ in range(2)]
    _each(2, lambda rank: groups[rank].configure(f"127.0.0.1:{store.port}/abort", "0", rank, 2))
    assert groups[0].errored() is None
    work = groups[0].allreduce([torch.ones(4)], AllreduceOptions())  # to which rank 1 doesn't come
    begun = time.monotonic()
    waited, _ = _each(2, lambda thread: work.get_future().wait() if thread == 0 else groups[0].abort())
    assert isinstance(waited, bps.ShutdownError) and time.monotonic() - begun < 5
    assert isinstance(groups[0].errored(), bps.ShutdownError)
    assert isinstance(_each(1, lambda _: _sum(groups[1], 1.0))[0], bps.PeerLostError)
    _each(2, lambda rank: groups[rank].configure(f"127.0.0.1:{store.port}/again", "0", rank, 2))
    assert groups[0].errored() is None
    assert _each(2, lambda rank: _sum(groups[rank], 1.0)) == [[2.0] * 4] * 2
    for group in groups:
        group.shutdown()


def test_who_does_not_come_is_named(store: Any) -> None:
    group = ProcessGroupByteps(timeout=timedelta(seconds=3))
    with pytest.raises(bps.DeadlineError, match="rank 1"):
        group.configure(f"127.0.0.1:{store.port}/late", "0", 0, 2)


def test_a_timeout_is_that_of_calls_too(store: Any) -> None:
    groups = [ProcessGroupByteps(timeout=timedelta(seconds=20)) for _ in range(2)]
    _each(2, lambda rank: groups[rank].configure(f"127.0.0.1:{store.port}/timeout", "0", rank, 2))
    groups[0].set_timeout(timedelta(seconds=0.3))
    begun = time.monotonic()
    with pytest.raises(bps.DeadlineError, match="rank 1"):
        groups[0].allreduce([torch.ones(4)], ReduceOp.SUM).wait()
    assert time.monotonic() - begun < 10
    for group in groups:
        group.shutdown()


def test_options_are_those_of_the_backend(store: Any) -> None:
    group = ProcessGroupByteps(options=bps.GroupOptions(reduction="ordered"))
    group.configure(f"127.0.0.1:{store.port}/options", "0", 0, 1)
    assert group.parent.options.reduction == "ordered"
    group.shutdown()
