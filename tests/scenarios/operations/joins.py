"""Ranks that run out of batches at different times: `body(bps, rank, size)`, for threads and processes."""

from __future__ import annotations

import time
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


def in_flight_when_one_joins(bps: Any, rank: int, size: int) -> None:
    """Rank 0 joins while the others, who needn't know yet, begin what it takes no part in: that raises there, and only
    there, at once. Afterwards all works as before."""
    if size == 1:
        return
    some = bps.add_process_set([0, 1]) if size > 2 else None
    everything = [
        lambda: bps.allgather(torch.ones(2)), lambda: bps.allgather(torch.ones(2), name="named"),
        lambda: bps.grouped_allgather([torch.ones(2), torch.ones(3)]),
        lambda: bps.broadcast(torch.ones(3), 1, name="b"), lambda: bps.broadcast(torch.ones(3), 0),
        lambda: bps.alltoall(torch.ones(size)), lambda: bps.reducescatter(torch.ones(size)), bps.barrier,
        lambda: bps.sparse_allreduce_async(torch.eye(3).to_sparse())(),
    ]  # fmt: skip
    if size & (size - 1) == 0:
        everything.append(lambda: bps.allreduce(torch.ones(2), op=bps.Adasum))
    if some is not None and (rank <= 1):
        everything.append(lambda: bps.allreduce(torch.ones(2), process_set=some))
    elif some is not None:
        everything.append(lambda: bps.allgather(torch.ones(2)))
    for turn, call in enumerate(everything):
        if turn % 2:
            bps.allreduce(torch.ones(2), name=f"before {turn}")
        if rank:
            started = time.monotonic()
            raises(bps.InvalidArgumentError, call, "has joined")
            assert time.monotonic() - started < 10
        last = bps.join()
        assert 0 <= last < size
        found = [bps.broadcast(torch.tensor([float(rank)]), 1).item(), bps.allgather(torch.tensor([rank])).tolist()]
        assert found == [1.0, list(range(size))]
        bps.barrier()


def parameters_while_one_joins(bps: Any, rank: int, size: int) -> None:
    """As above, of broadcasts of many tensors."""
    for turn in range(4 if size > 1 else 0):
        state = {"weight": torch.full((300,), float(rank + turn))}
        if rank:
            raises(bps.BytePSLikeError, lambda state=state: bps.broadcast_parameters(state, 1), "has joined")
        bps.join()
        bps.broadcast_parameters(state, 1)
        assert state["weight"].eq(1 + turn).all()


def what_all_began_is_not_given_up(bps: Any, rank: int, size: int) -> None:
    """Rank 0 has taken part in what the others have not synchronized yet when they hear that it has joined."""
    for turn in range(5):
        handles = [
            bps.allgather_async(torch.tensor([rank])), bps.broadcast_async(torch.full((2,), float(rank)), size - 1),
            bps.reducescatter_async(torch.ones(size), op=bps.Sum, name=f"r{turn}"),
        ]  # fmt: skip
        if rank:
            time.sleep(0.02 * turn)
            gathered, sent, reduced = (bps.synchronize(handle) for handle in handles)
            assert gathered.tolist() == list(range(size)) and sent.eq(size - 1).all() and reduced.tolist() == [size]
        bps.join()


def names_used_once_before_a_join(bps: Any, rank: int, size: int) -> None:
    """Who joins first has let go of names that the others have in flight when they hear of it: it takes no part again.

    Then of names that are used for the first time while it has joined, and for the second time by some.
    """
    for turn in range(20):
        handles = [
            bps.allreduce_async(torch.full((3000,), float(rank)), name=f"{turn} {k}", op=bps.Sum) for k in range(8)
        ]
        for handle in handles:
            assert bps.synchronize(handle).eq(sum(range(size))).all()
        for step in range((rank + turn) % size):
            there = size - 1 - step
            for name in (f"{turn} {step}", f"{turn} new {step}"):
                assert bps.allreduce(torch.ones(3), name=name, op=bps.Sum).tolist() == [float(there)] * 3
        assert (bps.join() + turn) % size == (size - 1 if size > 1 else 0)


def waits_before_a_join_are_no_disagreement(bps: Any, rank: int, size: int) -> None:
    """Ranks say what they wait for; what they said before a join has nothing to do with what others do after it."""
    for turn in range(size + 1):
        if rank == turn % size:
            time.sleep(0.3)
        assert bps.allgather_object(rank + turn) == list(range(turn, turn + size))
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
    many_operations, last_is_named, other_operations_are_errors, in_flight_when_one_joins, parameters_while_one_joins,
    what_all_began_is_not_given_up, waits_before_a_join_are_no_disagreement, names_used_once_before_a_join,
]  # fmt: skip
"""Bodies that need nothing but (bps, rank, size)."""
