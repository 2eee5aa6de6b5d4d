"""torch.distributed over real worlds of processes: every call, what torch builds on them, and failures."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from byteps_like.errors import BytePSLikeError, DeadlineError, MismatchError, PeerLostError, ShutdownError
from tests.multiprocess.c10d.world import GroupPool
from tests.scenarios.c10d import calls as c10d
from tests.unit.torch.c10d.test_process_group import MISMATCHES


@pytest.fixture(scope="module")
def pool() -> Iterator[GroupPool]:
    processes = GroupPool(4)
    yield processes
    processes.close()


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("scenario", c10d.SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_operation(pool: GroupPool, scenario: Callable[..., None], transport: str) -> None:
    for size in (1, 2, 3, 4) if transport == "auto" else (3,):
        pool.run(size, scenario, environment={"BYTEPS_LIKE_TRANSPORT": transport})


def disagree(group: Any, rank: int, size: int, name: str) -> tuple[float, str]:
    begin = time.monotonic()
    with pytest.raises(MismatchError) as caught:
        MISMATCHES[name](group, min(rank, 1)).wait()
    elapsed = time.monotonic() - begin
    dist.barrier()
    group.allreduce([torch.ones(3)]).wait()
    return elapsed, str(caught.value)


@pytest.mark.parametrize("name", MISMATCHES)
def test_mismatch_is_named_on_every_rank_and_the_group_goes_on(pool: GroupPool, name: str) -> None:
    for elapsed, text in pool.run(3, disagree, name):
        assert elapsed < 5
        assert "rank" in text and ("all_reduce" in text or "broadcast" in text)


def wait_for_rank_1(group: Any, rank: int, size: int) -> str:
    if rank == 1:
        time.sleep(1.5)
        return ""
    options = dist.AllreduceOptions()
    options.timeout = timedelta(seconds=0.5)
    begin = time.monotonic()
    with pytest.raises(DeadlineError) as caught:
        group.allreduce([torch.ones(10)], options).wait()
    assert time.monotonic() - begin < 1.5
    return str(caught.value)


def test_a_rank_that_never_comes_is_named_at_the_deadline(pool: GroupPool) -> None:
    texts = pool.run(2, wait_for_rank_1)
    assert all("rank 1" in text and "timed out after the timeout of 0.5 s" in text for text in texts if text), texts


def miss_barrier(group: Any, rank: int, size: int) -> str:
    dist.barrier()  # the others come to the next one at once
    if rank == 2:
        time.sleep(1.0)
        return ""
    with pytest.raises(DeadlineError) as caught:
        dist.monitored_barrier(timeout=timedelta(seconds=0.3))
    return str(caught.value)


def test_monitored_barrier_names_the_missing(pool: GroupPool) -> None:
    texts = pool.run(3, miss_barrier)
    assert (
        all("Rank 2 failed to pass monitoredBarrier in 300 ms" in text for text in texts if text)
        and texts[0]
        and texts[1]
    )


def pass_monitored_barriers(group: Any, rank: int, size: int) -> None:
    other = dist.new_group(backend="gloo")
    dist.monitored_barrier(timeout=timedelta(seconds=20))
    dist.monitored_barrier(other, timedelta(seconds=20))
    if rank == 0:
        with pytest.raises(RuntimeError, match="monitoredBarrier") as caught:
            dist.monitored_barrier(other, timedelta(seconds=0.1))
        assert not isinstance(caught.value, BytePSLikeError)
    dist.barrier()


def test_monitored_barriers_of_gloo_stay_torchs(pool: GroupPool) -> None:
    pool.run(2, pass_monitored_barriers)


def test_groups_are_made_without_init_process_group(pool: GroupPool) -> None:
    pool.run(3, regroup)


def regroup(group: Any, rank: int, size: int) -> None:
    """As a fault-tolerant program does: a group, which ends in the middle of a call; then another, of fewer ranks."""
    from byteps_like.torch import GroupOptions, create_process_group

    store, limit = group.get_group_store(), timedelta(seconds=20)
    first = create_process_group(dist.PrefixStore("first", store), rank, size, timeout=limit)
    tensor = torch.full((3,), rank + 1.0)
    first.allreduce([tensor]).wait()
    assert tensor.tolist() == [6.0] * 3 and (first.rank(), first.size()) == (rank, size)
    end_in_the_middle(first, dist.PrefixStore("end", store), rank, tensor)
    if rank == 2:
        return
    options = GroupOptions(reduction="ordered")
    second = create_process_group(dist.PrefixStore("second", store), rank, 2, timeout=limit, options=options, name="q1")
    second.allreduce([tensor]).wait()
    assert tensor.tolist() == [12.0] * 3 and second.getGroupName() == "q1"
    second.shutdown()


def end_in_the_middle(group: Any, store: dist.Store, rank: int, tensor: torch.Tensor) -> None:
    """Rank 2 never calls. Rank 0 aborts once rank 1 has called: what each is told doesn't depend on who is faster."""
    if rank != 2:
        lost = group.allreduce([tensor])
    if rank == 1:
        store.set("called", "")
        with pytest.raises(PeerLostError, match="was aborted"):
            lost.wait()
    if rank == 0:
        store.wait(["called"])
    else:
        store.wait(["aborted"])
    group.abort()
    if rank == 0:
        with pytest.raises(ShutdownError):
            lost.wait()
        store.set("aborted", "")


def meet_without_rank_1(group: Any, rank: int, size: int) -> str:
    if rank == 1:
        return ""
    store = dist.PrefixStore("incomplete", group.get_group_store())
    from byteps_like.torch.job.rendezvous import meet
    from byteps_like.worker.meeting import MeetingSeat

    with pytest.raises(DeadlineError) as caught:
        meet(MeetingSeat(store, rank, size, 0.5))
    return str(caught.value)


def test_a_rank_that_is_missing_at_init_is_named(pool: GroupPool) -> None:
    assert all("for rank 1 at the store" in text for text in pool.run(3, meet_without_rank_1) if text)


COUNT = 4 << 20
KINDS: dict[str, Callable[[Any, torch.Tensor, int], Any]] = {
    "all_reduce": lambda g, t, n: g.allreduce([t]),
    "reduce": lambda g, t, n: g.reduce([t], 0, dist.ReduceOp.SUM),
    "broadcast": lambda g, t, n: g.broadcast([t], n - 1),
    "all_gather": lambda g, t, n: g.all_gather_single(torch.empty(COUNT * n), t),
    "reduce_scatter": lambda g, t, n: g.reduce_scatter_single(torch.empty(COUNT // n), t[: COUNT // n * n]),
    "all_to_all": lambda g, t, n: g.all_to_all_single(torch.empty(COUNT // n * n), t[: COUNT // n * n]),
    "gather": lambda g, t, n: g.gather([[torch.empty(COUNT) for _ in range(n)]], [t], 0),
    "scatter": lambda g, t, n: g.scatter([t], [[torch.empty(COUNT) for _ in range(n)]], n - 1),
    "barrier": lambda g, t, n: g.barrier(),
    "receive": lambda g, t, n: g.recv([t], n - 1),
}


def die_in_the_middle(group: Any, rank: int, size: int, kind: str) -> tuple[str, float]:
    """The last rank is killed once it has begun the call; the others say what they got, and how long it took."""
    tensor = torch.ones(COUNT)
    group.allreduce([tensor]).wait()
    group.barrier().wait()
    if rank == size - 1:
        if kind not in ("barrier", "receive"):
            KINDS[kind](group, tensor, size)
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    try:
        for _ in range(1000):
            KINDS[kind](group, tensor, size).wait()
    except BytePSLikeError as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - begin
    return "nothing was raised", time.monotonic() - begin


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_survivor_of_a_kill_raises_within_two_seconds(kind: str, transport: str) -> None:
    processes = GroupPool(3)
    try:
        *survivors, dead = processes.answers(
            3, die_in_the_middle, kind, environment={"BYTEPS_LIKE_TRANSPORT": transport}
        )
        assert dead == (False, "the process died")
        for ok, answer in survivors:
            assert ok, answer
            text, elapsed = answer
            assert text.startswith(PeerLostError.__name__) and "rank 2" in text, text
            assert elapsed < 2, text
    finally:
        processes.close()
