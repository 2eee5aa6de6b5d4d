"""Ranks that run out of batches at different times: `body(bps, rank, size)`, for threads and processes."""

from __future__ import annotations

from typing import Any

import torch

from tests.scenarios.checks import raises, same_everywhere
from tests.scenarios.models import batch, distance, flat, loss_of, mlp


def steps_of(rank: int, size: int) -> int:
    """Rank 0 makes the fewest; the last rank the most."""
    return 1 + 2 * rank


def uneven_batches(bps: Any, rank: int, size: int) -> None:
    """As one process in which those that have no batch any more count as zeros."""
    for turn in range(2):
        model, reference = mlp(seed=turn), mlp(seed=turn)
        optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        for step in range(steps_of(rank, size)):
            optimizer.zero_grad()
            loss_of(model, *batch(100 * rank + step)).backward()
            optimizer.step()
        last = bps.join()
        assert last == size - 1
        bps.broadcast_parameters(model.state_dict(), root_rank=last)
        plain = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9)
        for step in range(steps_of(size - 1, size)):
            plain.zero_grad()
            for other in range(size):
                if step < steps_of(other, size):
                    (loss_of(reference, *batch(100 * other + step)) / size).backward()
            plain.step()
        assert distance(flat(model), flat(reference)) < 1e-12
        same_everywhere(bps, flat(model))


def training_goes_on(bps: Any, rank: int, size: int) -> None:
    """The same optimizer before and after a join."""
    model, reference = mlp(), mlp()
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    plain = torch.optim.SGD(reference.parameters(), lr=0.1)
    for epoch in range(3):
        for step in range(2 + (rank == epoch % size)):
            optimizer.zero_grad()
            loss_of(model, *batch(step)).backward()
            optimizer.step()
        last = bps.join()
        bps.broadcast_parameters(model.state_dict(), root_rank=last)
        for step in range(3 if size > 1 else 2 + (epoch % size == 0)):
            plain.zero_grad()
            (loss_of(reference, *batch(step)) * (1.0 if step < 2 else 1.0 / size)).backward()
            plain.step()
        assert distance(flat(model), flat(reference)) < 1e-12, epoch


def many_operations(bps: Any, rank: int, size: int) -> None:
    """Named and unnamed reductions, several in flight, also at the moment in which another rank joins."""
    for step in range(3 * rank):
        active = [r for r in range(size) if step < 3 * r]
        handles = [
            bps.allreduce_async(torch.full((5,), float(rank)), name=f"n{k}" if k % 2 else None, op=bps.Sum)
            for k in range(6)
        ]
        for handle in handles:
            assert bps.synchronize(handle).tolist() == [float(sum(active))] * 5
    assert bps.join() == size - 1
    assert bps.allgather(torch.tensor([rank])).tolist() == list(range(size))


def last_is_named(bps: Any, rank: int, size: int) -> None:
    for turn in range(size):
        if rank == turn:
            for _ in range(3):
                bps.allreduce(torch.ones(2), name="alone")
        found = bps.join()
        assert size == 1 or 0 <= found < size
        assert len(set(bps.allgather_object(found))) == 1


def other_operations_are_errors(bps: Any, rank: int, size: int) -> None:
    if size == 1:
        return
    if rank == 0:
        bps.join()
        return
    # Once an allreduce has gone through without rank 0, everybody knows.
    while bps.allreduce(torch.ones(1), name="probe", op=bps.Sum).item() == size:
        pass
    for call in (
        lambda: bps.allgather(torch.ones(1)), lambda: bps.broadcast(torch.ones(1), 1), bps.barrier,
        lambda: bps.alltoall(torch.ones(size)), lambda: bps.reducescatter(torch.ones(size)),
    ):  # fmt: skip
        raises(bps.InvalidArgumentError, call, "rank 0 has joined")
    bps.join()


def gradients_cleared_between(bps: Any, rank: int, size: int) -> None:
    """zero_grad() after backward, while another rank has joined, throws the round away on all that are left.

    Rank 0 has joined before the first step, so nobody has an order for the arena.
    """
    model, reference = mlp(), mlp()
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    plain = torch.optim.SGD(reference.parameters(), lr=0.1)
    for step in range(3 * rank):
        loss_of(model, *batch(step)).backward()
        optimizer.zero_grad()
        loss_of(model, *batch(step + 1)).backward()
        optimizer.step()
        optimizer.zero_grad()
        plain.zero_grad()
        there = sum(3 * other > step for other in range(size))
        (loss_of(reference, *batch(step + 1)) * there / size).backward()
        plain.step()
    assert distance(flat(model), flat(reference)) < 1e-12
    assert bps.join() == size - 1


def buffers_stay_while_their_rank_has_joined(bps: Any, rank: int, size: int) -> None:
    """Rank 0's buffers are handed out before each forward until it joins; from then on each rank keeps its own."""
    for first in (0, size - 1):  # who joins first
        model = bps.DistributedDataParallel(torch.nn.Sequential(mlp(), torch.nn.BatchNorm1d(5).double()))
        for step in range(1 if rank == first else 4):
            model(batch(10 * rank + step)[0]).square().sum().backward()
        bps.join()
        found = model.module[1].running_mean.clone()
        assert found.isfinite().all() and found.abs().max() > 0
        assert model.module[1].num_batches_tracked == (1 if rank == first else 4)
        bps.broadcast_parameters(model.state_dict(), root_rank=0)
        model.close()


SCENARIOS = [
    gradients_cleared_between, buffers_stay_while_their_rank_has_joined, uneven_batches, training_goes_on,
    many_operations, last_is_named, other_operations_are_errors,
]  # fmt: skip
"""Bodies that need nothing but (bps, rank, size)."""
