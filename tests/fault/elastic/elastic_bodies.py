"""What ranks do in the tests of elastic jobs whose ranks die: `body(bps, rank, size, ...)`."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from byteps_like.control.calls.client import order_drain
from byteps_like.control.members.drains import DrainOrder
from byteps_like.control.types import MemberRole
from byteps_like.torch.job import runtime
from tests.fault.bodies import Seen, watch
from tests.fault.store.store_bodies import digits

_SIZES = [1, 1000, 70_001, 600_000]
_ROUNDS = 60
_PLACE = 8
"""Bits of a rank's place in a sum, in which it counts itself."""


def die(rank: int, victims: list[int], seconds: float = 0.0) -> None:
    """Kills this process if it is a victim: at once, or in so many seconds."""
    if rank not in victims:
        return
    if seconds:
        threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
    else:
        os.kill(os.getpid(), signal.SIGKILL)


def _contributors(values: torch.Tensor, size: int) -> list[tuple[int, ...]]:
    """Of a sum to which each rank brings 1 in its own place: the sets of ranks that elements are the sum of."""
    found = [int(value) for value in values.unique()]
    assert all(value >> (_PLACE * rank) & 0xFF in (0, 1) for value in found for rank in range(size)), found
    return [tuple(rank for rank in range(size) if value >> (_PLACE * rank) & 1) for value in found]


def sum_on(bps: Any, rank: int, size: int, victims: list[int]) -> dict[str, Any]:
    """Sums and averages in every round, all in flight together; victims die in the middle of one. What has been in the
    sums, a checksum of all results, and whether averages were those of the same contributors."""
    sets: set[tuple[int, ...]] = set()
    right, digest = True, hashlib.sha256()
    for number in range(_ROUNDS):
        sums = [torch.full((n,), 1 << (_PLACE * rank), dtype=torch.int64) for n in _SIZES]
        averages = [torch.full((n,), float(rank), dtype=torch.float32) for n in _SIZES]
        handles = [bps.push_pull_async_inplace(one, average=False, name=f"sum{i}") for i, one in enumerate(sums)]
        if number == _ROUNDS // 3 + rank:
            die(rank, victims)
        handles += [bps.push_pull_async_inplace(one, average=True, name=f"mean{i}") for i, one in enumerate(averages)]
        for handle in handles:
            bps.synchronize(handle)
        for one in sums:
            sets.update(_contributors(one, size))
        means = {sum(some) / len(some) for some in _subsets(size, victims)}
        right = right and all(round(float(v), 6) in {round(m, 6) for m in means} for a in averages for v in a.unique())
        for one in (*sums, *averages):
            digest.update(one.numpy().tobytes())
    last = [sorted(set(_contributors(one, size))) for one in sums]
    return {"sets": sorted(sets), "right": right, "digest": digest.hexdigest(), "last": last}


def sum_without_servers(bps: Any, rank: int, size: int, deaths: dict[int, int]) -> str:
    """See _sum_while; in rounds `deaths`, rank 0 kills the server process of that id."""
    return _sum_while(bps, rank, size, lambda number: number in deaths and os.kill(deaths[number], signal.SIGKILL))


def sum_while_servers_leave(bps: Any, rank: int, size: int, drains: dict[int, int]) -> str:
    """See _sum_while; in rounds `drains`, rank 0 has the server of that rank leave."""

    def disturb(number: int) -> None:
        if number in drains:
            order_drain(runtime.current().config, DrainOrder(MemberRole.SERVER, drains[number]))

    return _sum_while(bps, rank, size, disturb)


def _sum_while(bps: Any, rank: int, size: int, disturb: Callable[[int], Any]) -> str:
    """Sums in every round, all in flight together, in arenas and in private memory, in the middle of which rank 0 does
    something. All sums are those of all ranks. A checksum of all results."""
    digest = hashlib.sha256()
    private = [torch.empty(n) for n in _SIZES]
    shared = [bps.empty_shared(n) for n in _SIZES]
    for number in range(_ROUNDS):
        for one in (*private, *shared):
            one.fill_(float(rank + number))
        handles = [
            bps.push_pull_async_inplace(one, average=False, name=f"{kind}{i}")
            for kind, some in (("private", private), ("shared", shared))
            for i, one in enumerate(some)
        ]
        if rank == 0:
            disturb(number)
        for handle in handles:
            bps.synchronize(handle)
        expected = float(sum(other + number for other in range(size)))
        for one in (*private, *shared):
            assert bool((one == expected).all()), (number, one.unique(), expected)
            digest.update(one.numpy().tobytes())
    return digest.hexdigest()


def _subsets(size: int, victims: list[int]) -> list[list[int]]:
    left: list[list[int]] = [[rank for rank in range(size) if rank not in victims]]
    for victim in victims:
        left += [sorted([*one, victim]) for one in left]
    return left


def train(bps: Any, rank: int, size: int, compression: str | None, steps: int) -> dict[str, Any]:
    """The digits. Rank 1 dies when a third is done."""
    found = _train(bps, rank, compression, steps, lambda: die(rank, [1], 0.003))
    if rank == 1:
        time.sleep(60)
    return found


def train_without_server(bps: Any, rank: int, size: int, compression: str | None, server: int) -> dict[str, Any]:
    """The same; rank 0 kills this server process."""
    return _train(bps, rank, compression, 240, lambda: os.kill(server, signal.SIGKILL) if rank == 0 else None)


def _train(bps: Any, rank: int, compression: str | None, steps: int, disturb: Callable[[], None]) -> dict[str, Any]:
    images, labels = digits()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    more = {} if compression is None else {"compression": compression}
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.3), named_parameters=model.named_parameters(), **more
    )
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    torch.manual_seed(1 + rank)
    for step in range(steps):
        if step == steps // 3:
            disturb()
        batch = torch.randint(len(labels), (64,))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
    with torch.no_grad():
        accuracy = float((model(images).argmax(1) == labels).float().mean())
        weights = torch.cat([parameter.flatten() for parameter in model.parameters()])
    return {"accuracy": accuracy, "weights": hashlib.sha256(weights.numpy().tobytes()).hexdigest()}


def step_by_constants(bps: Any, rank: int, size: int, options: dict[str, Any]) -> list[float]:
    """Ten steps of a gradient that is 12 on all ranks and everywhere, so that its average is 12 of however many. Rank 1
    dies in the fifth. The least and the greatest of the weights in the end, which were 0."""
    weights = torch.nn.Parameter(torch.zeros(300_000))
    optimizer = bps.DistributedOptimizer(torch.optim.SGD([weights], lr=1.0), [("weights", weights)], **options)
    for step in range(10):
        optimizer.zero_grad()
        if step == 4:
            die(rank, [1], 0.002)
        (12 * weights).sum().backward()
        optimizer.step()
    if rank == 1:
        time.sleep(60)
    return [float(weights.min()), float(weights.max())]


def report_steps(bps: Any, rank: int, size: int) -> dict[str, Any]:
    """Ten steps, after each of which its report is read. The gradient of rank r is 2 ** r, so weights say who is in
    them. Rank 1 dies in the fifth. What each step's report says, and whether the weights say the same."""
    weights = torch.nn.Parameter(torch.zeros(400_000))
    optimizer = bps.DistributedOptimizer(torch.optim.SGD([weights], lr=1.0), [("weights", weights)], op=bps.Sum)
    steps, right = [], True
    for number in range(10):
        before = weights.detach().clone()
        optimizer.zero_grad()
        if number == 4:
            die(rank, [1], 0.002)
        (2.0**rank * weights).sum().backward()
        optimizer.step()
        step = bps.elastic.report().steps[-1]
        sums = (before - weights.detach()).to(torch.int64)
        right = right and _says(step, sums, size)
        steps.append((step.number, step.size, step.contributors, [str(one) for one in step.lacks]))
    if rank == 1:
        time.sleep(60)
    return {"steps": steps, "right": right, "rank": step.rank, "text": str(bps.elastic.report())}


def _says(step: Any, sums: torch.Tensor, size: int) -> bool:
    """Whether a step's report says of each element of one gradient, which lies first in its arena, who is in it."""
    expected = torch.full_like(sums, (1 << size) - 1)
    for lack in step.lacks:
        for missing in lack.ranges:
            expected[missing.start // 4 : missing.stop // 4] -= 1 << lack.rank
    return bool(torch.equal(expected, sums))


def average_whole_numbers(bps: Any, rank: int, size: int, rounds: int) -> list[int]:
    """Averages of numbers that are the same on all ranks, halved: -3, and 2 and a half, which is rounded once. Rank 1
    dies in the middle. The values that come out."""
    found: set[int] = set()
    for number in range(rounds):
        if number == rounds // 2:
            die(rank, [1], 0.002)
        values = torch.full((200_000,), -6, dtype=torch.int32)
        values[::2] = 5
        handle = bps.allreduce_async_(values, op=bps.Average, postscale_factor=0.5, name="halves")
        found.update(bps.synchronize(handle).unique().tolist())
    if rank == 1:
        time.sleep(60)
    return sorted(found)


def average_sparse(bps: Any, rank: int, size: int, rounds: int) -> list[tuple[int, list[float]]]:
    """Averages of rows that are the same on all ranks, by servers from the second round on. Rank 1 dies in the middle.
    Of each round how many rows there were, and the values that came out."""
    from byteps_like.torch.sparse import sums
    from byteps_like.torch.sparse.choice import SparseMethod

    sums.choose = lambda rows, size, seen, cards: SparseMethod.SERVERS if seen else SparseMethod.GATHERED
    rows = torch.arange(0, 40_000, 4)
    found = []
    for number in range(rounds):
        if number == rounds // 2:
            die(rank, [1], 0.002)
        tensor = torch.sparse_coo_tensor(rows[None], torch.full((len(rows), 8), 12.0), (40_000, 8))
        result = bps.synchronize(bps.push_pull_async(tensor, name="rows"))
        found.append((result.indices().shape[1], result.values().unique().tolist()))
    if rank == 1:
        time.sleep(60)
    return found


def then_call(bps: Any, rank: int, size: int, how: str) -> list[Seen]:
    """Something that two ranks must come to, or all that live: while rank 1 dies, and once that is known."""
    call = {
        "broadcast": lambda: bps.broadcast(torch.ones(8), root_rank=1, name="from1"),
        "allgather": lambda: bps.allgather(torch.ones(8), name="all"),
        "barrier": bps.barrier,
    }[how]
    call()
    die(rank, [1])
    return [watch(call), watch(call)]


def until_too_few(bps: Any, rank: int, size: int) -> Seen:
    """Sums until the job ends; ranks 1 and 2 die one after the other."""
    bps.push_pull(torch.ones(8), name="sum")
    die(rank, [1, 2], 0.3 * rank)

    def until() -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            bps.push_pull(torch.ones(8), name="sum")

    return watch(until)
