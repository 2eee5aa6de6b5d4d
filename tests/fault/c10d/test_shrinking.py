"""Ranks of a c10d group die, hang or are excluded: the others shrink the group and go on in it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("byteps_like._core", reason="the native core is not built")

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import byteps_like.torch as bps
from tests.multiprocess.c10d.world import GroupPool
from tests.multiprocess.real_world import Pool, job

RANKS = 4
ELEMENTS = 1 << 20
Seen = tuple[str, str, float]
"""Class and text of an error, and the seconds that it took."""


def _watch(call: Callable[[], Any]) -> Seen:
    begun = time.monotonic()
    try:
        call()
    except Exception as error:  # noqa: BLE001 - the test shows which it was
        return type(error).__name__, str(error), time.monotonic() - begun
    return "", "nothing was raised", time.monotonic() - begun


def _until_it_fails() -> None:
    for _ in range(200):
        dist.all_reduce(torch.ones(ELEMENTS))


def _works(former: int, group: Any = None) -> dict[str, Any]:
    """What collectives of a group give; `former` is this rank's number in the group before."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    own = torch.full((ELEMENTS,), float(former))
    dist.all_reduce(own, group=group)
    gathered = [torch.zeros(3) for _ in range(size)]
    dist.all_gather(gathered, torch.full((3,), float(former)), group=group)
    sent = torch.full((5,), float(former))
    dist.broadcast(sent, group_src=size - 1, group=group)
    got = torch.zeros(2)
    if size > 1:
        ahead, behind = (rank + 1) % size, (rank - 1) % size
        work = dist.isend(torch.full((2,), float(former)), group_dst=ahead, group=group)
        dist.recv(got, group_src=behind, group=group)
        work.wait()
    dist.barrier(group)
    found: dict[str, Any] = {"rank": rank, "size": size, "sum": own.unique().tolist()}
    return found | {"all": [float(one[0]) for one in gathered], "last": float(sent[0]), "before": float(got[0])}


def _expected(left: list[int], rank: int) -> dict[str, Any]:
    numbers = [float(one) for one in left]
    found: dict[str, Any] = {"rank": rank, "size": len(left), "sum": [sum(numbers)], "all": numbers}
    return found | {"last": numbers[-1], "before": numbers[rank - 1] if len(left) > 1 else 0.0}


def _trains(seed: int) -> float:
    """A step of DDP, over the default group: a sum of its weights."""
    torch.manual_seed(7)
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    torch.manual_seed(seed)
    model(torch.randn(8, 64)).sum().backward()
    return float(model.module.weight.grad.sum())


def killed(group: Any, rank: int, size: int, victims: list[int]) -> Any:
    """Victims die in the middle of an all_reduce; the others are told, shrink, and go on."""
    dist.new_group([0, 1])
    dist.all_reduce(torch.ones(ELEMENTS))
    dist.barrier()
    if rank in victims:
        dist.all_reduce(torch.ones(ELEMENTS), async_op=True)
        os.kill(os.getpid(), signal.SIGKILL)
    seen = _watch(_until_it_fails)
    begun = time.monotonic()
    made = bps.shrink_group(victims)
    took = time.monotonic() - begun
    assert made is dist.group.WORLD and dist.get_backend() == "byteps"
    found = {"seen": seen, "took": took, "works": _works(rank), "after": _watch(lambda: dist.barrier(group))}
    part = dist.new_group([0, dist.get_world_size() - 1]) if dist.get_world_size() > 1 else None
    inside = dist.get_rank() in (0, dist.get_world_size() - 1)
    return found | {"part": _works(rank, part) if part is not None and inside else None, "trained": _trains(rank)}


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("victims", [[2], [0], [1, 3], [0, 1, 2]])
def test_survivors_of_a_death_go_on(victims: list[int], transport: str) -> None:
    with _pool() as pool:
        answers = pool.answers(RANKS, killed, victims, environment={"BYTEPS_LIKE_TRANSPORT": transport})
    found = _survivors(answers, victims)
    left = [rank for rank in range(RANKS) if rank not in victims]
    for rank, one in enumerate(found):
        name, text, seconds = one["seen"]
        assert name == "PeerLostError" and any(f"rank {victim}" in text for victim in victims), text
        assert seconds < 5 and one["took"] < 1
        assert one["works"] == _expected(left, rank)
        assert one["after"][0] == "ShutdownError" and "was shrunk" in one["after"][1]
        if one["part"] is not None:
            assert one["part"] == _expected([left[0], left[-1]], 0 if rank == 0 else 1)
    assert len({one["trained"] for one in found}) == 1


def killed_at_first(group: Any, rank: int, size: int, victim: int) -> Any:
    """One dies before any call was made."""
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    seen = _watch(_until_it_fails)
    bps.shrink_group([victim])
    return seen, _watch(_until_it_fails), _works(rank) if victim else None


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_one_may_die_before_the_first_call(transport: str) -> None:
    environment = {"BYTEPS_LIKE_TRANSPORT": transport}
    with _pool() as pool:
        found = _survivors(pool.answers(RANKS, killed_at_first, RANKS - 1, environment=environment), [RANKS - 1])
    for rank, (seen, after, works) in enumerate(found):
        assert seen[0] == "PeerLostError" and seen[2] < 5 and after[0] == "", (seen, after)
        assert works == _expected([0, 1, 2], rank)


def test_who_was_to_make_the_hosts_shared_memory_is_named_at_once() -> None:
    with _pool() as pool:
        found = _survivors(pool.answers(RANKS, killed_at_first, 0), [0])
    for seen in (one for each in found for one in each[:2]):
        assert seen[0] == "PeerLostError" and "rank 0" in seen[1] and seen[2] < 5, seen


def excluded_alive(group: Any, rank: int, size: int) -> Any:
    """Ranks 1, then what was 3, leave in good order, as planned; the others make the group smaller twice."""
    dist.all_reduce(torch.ones(ELEMENTS))
    store = group.get_group_store()
    found = []
    for gone in (1, 3):
        if rank == gone:
            store.wait([f"without {gone}"], timedelta(seconds=30))
            return found
        dist.shrink_group([dist.get_world_size() - 1 if gone == 3 else 1])
        found.append(_works(rank))
        store.set(f"without {gone}", "")
    return found


def test_living_ranks_are_excluded_by_torchs_name_for_it() -> None:
    with _pool() as pool:
        found = pool.run(RANKS, excluded_alive)
    assert found[1] == []
    assert found[3] == [_expected([0, 2, 3], 2)]
    assert found[0] == [_expected([0, 2, 3], 0), _expected([0, 2], 0)]
    assert found[2] == [_expected([0, 2, 3], 1), _expected([0, 2], 1)]


def hanging(group: Any, rank: int, size: int, flags: int) -> Any:
    """Rank 3 doesn't come to what the others have begun: a call, a message for it, one from it."""
    dist.all_reduce(torch.ones(ELEMENTS))
    store = group.get_group_store()
    late = torch.ones(ELEMENTS)
    if rank == 3:
        store.wait(["shrunk 0", "shrunk 1", "shrunk 2"], timedelta(seconds=30))
        seen = _watch(lambda: dist.all_reduce(late))
        store.wait(["over 0", "over 1", "over 2"], timedelta(seconds=30))
        return seen[0]
    work = dist.all_reduce(late, async_op=True)
    waited: list[Seen] = []
    thread = threading.Thread(target=lambda: waited.append(_watch(work.wait)))
    thread.start()
    messages = [dist.irecv(torch.zeros(3), src=3), dist.isend(torch.ones(ELEMENTS), dst=3)] if flags else []
    begun = time.monotonic()
    made = bps.shrink_group([3], shrink_flags=flags, pg_options=bps.GroupOptions(reduction="ordered"))
    if flags:
        thread.join(10)
    aborted = [_watch(message.wait)[0] for message in messages], time.monotonic() - begun
    store.set(f"shrunk {rank}", "")
    works = _works(rank)
    thread.join(20)
    store.set(f"over {rank}", "")
    return waited[0][0], aborted, works, made.options.reduction, late.unique().tolist()


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_what_is_in_flight_is_aborted_if_asked_for(transport: str) -> None:
    with _pool() as pool:
        found = pool.run(RANKS, hanging, 1, environment={"BYTEPS_LIKE_TRANSPORT": transport})
    for rank, (waited, (messages, seconds), works, reduction, _) in enumerate(found[:3]):
        assert (waited, messages, reduction) == ("ShutdownError", ["ShutdownError"] * 2, "ordered")
        assert seconds < 3
        assert works == _expected([0, 1, 2], rank)
    assert found[3] == "ShutdownError"


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_what_is_in_flight_goes_on_else(transport: str) -> None:
    with _pool() as pool:
        found = pool.run(RANKS, hanging, 0, environment={"BYTEPS_LIKE_TRANSPORT": transport})
    for rank, (waited, _, works, _, summed) in enumerate(found[:3]):
        assert (waited, summed) == ("", [4.0])
        assert works == _expected([0, 1, 2], rank)
    assert found[3] == ""


def of_a_part(group: Any, rank: int, size: int) -> Any:
    """A group of three shrinks; the default group stays as it is."""
    part = dist.new_group([3, 1, 2])
    numbers = None
    if rank in (1, 3):
        dist.all_reduce(torch.ones(8), group=part)
        made = bps.shrink_group([dist.get_group_rank(part, 2)], part)
        numbers = dist.get_process_group_ranks(made), _works(rank, made)
        dist.destroy_process_group(made)
    elif rank == 2:
        dist.all_reduce(torch.ones(8), group=part)
    assert dist.group.WORLD is group
    return numbers, _works(rank)


def test_a_part_shrinks_by_itself() -> None:
    with _pool() as pool:
        found = pool.run(RANKS, of_a_part)
    assert [one[1] for one in found] == [_expected([0, 1, 2, 3], rank) for rank in range(RANKS)]
    (ranks, of_1), (_, of_3) = found[1][0], found[3][0]
    assert found[0][0] is found[2][0] is None
    assert ranks == [1, 3] and of_1 == _expected(ranks, ranks.index(1)) and of_3 == _expected(ranks, ranks.index(3))


def beside_torch(group: Any, rank: int, size: int) -> Any:
    """A group that torch doesn't know."""
    own = bps.create_process_group(group.get_group_store(), rank, size, timeout=timedelta(seconds=20), name="own")
    own.allreduce([torch.ones(8)]).wait()
    found = None
    if rank != 2:
        made = bps.shrink_group([2], own)
        mine = torch.full((8,), float(rank))
        made.allreduce([mine]).wait()
        found = made.rank(), made.size(), mine.tolist(), _watch(lambda: own.barrier().wait())[0]
    dist.barrier()
    if rank != 2:
        made.shutdown()
    else:
        own.shutdown()
    return found


def test_groups_that_torch_does_not_know_shrink_too() -> None:
    with _pool() as pool:
        found = pool.run(RANKS, beside_torch)
    assert [found[rank] for rank in (0, 1, 3)] == [(number, 3, [4.0] * 8, "ShutdownError") for number in range(3)]


def refused(group: Any, rank: int, size: int) -> list[Seen]:
    """Each wrong argument; the group is as it was after all of them."""
    calls: list[Callable[[], Any]] = [
        lambda: bps.shrink_group((1,)),  # type: ignore[arg-type]
        lambda: bps.shrink_group([]),
        lambda: bps.shrink_group([1], shrink_flags=2),
        lambda: bps.shrink_group(["1"]),  # type: ignore[list-item]
        lambda: bps.shrink_group([size]),
        lambda: bps.shrink_group([-1]),
        lambda: bps.shrink_group([1 - rank, 1 - rank]),
        lambda: bps.shrink_group([0, 1]),
        lambda: bps.shrink_group([rank]),
        lambda: bps.shrink_group([1 - rank], pg_options=dist.ProcessGroup),
        lambda: bps.shrink_group([1 - rank], dist.new_group([0, 1], backend="gloo")),
        lambda: bps.shrink_group([1], group.split_group([rank])),
    ]
    seen = [_watch(call) for call in calls]
    dist.all_reduce(torch.ones(8))
    ended = group.split_group([0, 1])
    ended.abort()
    return [*seen, _watch(lambda: bps.shrink_group([1 - rank], ended))]


def test_wrong_arguments_change_nothing() -> None:
    with _pool(2) as pool:
        for seen in pool.run(2, refused):
            assert [name for name, _, _ in seen] == [
                "TypeError", "ValueError", "ValueError", "TypeError", "ValueError", "ValueError", "ValueError",
                "ValueError", "RuntimeError", "InvalidArgumentError", "TypeError", "ValueError", "ShutdownError",
            ], seen  # fmt: skip
            assert "'gloo'" in seen[10][1] and "a duplicate" in seen[6][1]


def in_elastic_job(bps: Any, rank: int, size: int, port: int) -> Any:
    """Servers finish sums without rank 1, which dies; the c10d group beside them shrinks."""
    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    dist.init_process_group("byteps", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=20))
    dist.all_reduce(torch.ones(ELEMENTS))
    bps.push_pull(torch.ones(8), name="sum")
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    seen = _watch(_until_it_fails)
    bps.shrink_group([1])
    works = _works(rank)
    total = bps.push_pull(torch.ones(8), average=False, name="sum").tolist()
    dist.destroy_process_group()
    return seen[0], works, total


def test_beside_an_elastic_job() -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pool = Pool(RANKS)
    try:
        with job(RANKS, 1, elastic=True) as cluster:
            found = _survivors(pool.answers(cluster, in_elastic_job, store.port), [1])
    finally:
        pool.close()
    for rank, (name, works, total) in enumerate(found):
        assert name == "PeerLostError"
        assert works == _expected([0, 2, 3], rank)
        assert total == [3.0] * 8


@contextmanager
def _pool(size: int = RANKS) -> Iterator[GroupPool]:
    pool = GroupPool(size)
    try:
        yield pool
    finally:
        pool.close()


def _survivors(answers: list[tuple[bool, Any]], victims: list[int]) -> list[Any]:
    assert [rank for rank, answer in enumerate(answers) if answer == (False, "the process died")] == victims, answers
    alive = [answer for rank, answer in enumerate(answers) if rank not in victims]
    assert all(ok for ok, _ in alive), "\n".join(str(text) for _, text in alive)
    return [result for _, result in alive]
