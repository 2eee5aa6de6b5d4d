"""Horovod's operations as one rank sees them: `body(bps, rank, size)`, for threads and processes."""

from __future__ import annotations

import random
import time
import warnings
from typing import Any

import numpy as np
import torch

from byteps_like.compression.codec import Draw
from byteps_like.compression.registry import codec_of
from tests.scenarios.checks import raises, same_everywhere
from tests.scenarios.operations.calls import own

TYPES = (torch.float32, torch.bfloat16, torch.int16, torch.int64, torch.bool, torch.complex64)


def rows(rank: int, dtype: torch.dtype = torch.float32, width: int = 3) -> torch.Tensor:
    """A rank's tensor: as many rows as its rank, so none on rank 0."""
    return (torch.arange(rank * width).reshape(rank, width) + 100 * rank).to(dtype)


def gathers(bps: Any, rank: int, size: int) -> None:
    for dtype in TYPES:
        expected = torch.cat([rows(r, dtype) for r in range(size)])
        found = bps.allgather(rows(rank, dtype), name=f"rows.{dtype}")
        assert found.dtype is dtype and torch.equal(found, expected)
    assert torch.equal(bps.allgather(torch.full((2, 2), rank)), torch.arange(size).repeat_interleave(4).view(-1, 2))
    tensors = [rows(rank), torch.ones(1, 4) * rank]
    first, second = bps.grouped_allgather(tensors)
    assert torch.equal(first, torch.cat([rows(r) for r in range(size)])) and second.shape == (size, 4)
    handle = bps.grouped_allgather_async(tensors, name="pair")
    assert [len(item) for item in bps.synchronize(handle)] == [len(first), size]
    assert torch.equal(bps.synchronize(bps.allgather_async(rows(rank))), first)


def coded_gathers(bps: Any, rank: int, size: int) -> None:
    """All ranks, the owner of rows included, get what the payloads say; what is no floating-point number is exact."""
    many = [torch.randn(50 * r, 7, generator=torch.Generator().manual_seed(r)) for r in range(size)]
    for text in ("int8", "onebit", "blocksparse", "coo", "bf16"):
        codec, nothing = codec_of(text), np.zeros(0, np.float32)
        for dtype in (torch.float32, torch.bfloat16):
            found, whole = bps.grouped_allgather(
                [many[rank].to(dtype), torch.full((2,), rank)], name=f"{text}.{dtype}", compression=text
            )
            wanted = []
            for x in (item.to(dtype).float() for item in many if len(item)):
                payload = codec.encode(x.flatten().numpy(), Draw(), nothing, 1)
                wanted.append(codec.decode(payload, 1, Draw(), nothing, x.numel(), 1))
            expected = torch.from_numpy(np.concatenate([nothing, *wanted])).view(-1, 7).to(dtype)
            assert found.dtype is dtype and torch.equal(found, expected), text
            assert torch.equal(whole, torch.arange(size).repeat_interleave(2))
    value = torch.ones(2, 3, requires_grad=True)
    (bps.allgather(value, compression="int8") * (rank + 1)).sum().backward()
    assert torch.equal(value.grad, torch.full((2, 3), (size + 1) / 2))


def alltoalls(bps: Any, rank: int, size: int) -> None:
    splits = [(rank + destination) % 3 for destination in range(size)]
    sent = torch.repeat_interleave(torch.arange(size), torch.tensor(splits))[:, None] * 10 + rank
    received, counts = bps.alltoall(sent.double(), splits, name="uneven")
    expected = [(source + rank) % 3 for source in range(size)]
    assert counts.tolist() == expected and counts.dtype is torch.int32
    assert received[:, 0].tolist() == [rank * 10 + s for s in range(size) for _ in range(expected[s])]
    even = bps.alltoall(torch.arange(2 * size) + 100 * rank)
    assert even.tolist() == [100 * s + 2 * rank + k for s in range(size) for k in range(2)]
    handle = bps.alltoall_async(sent, torch.tensor(splits))
    assert bps.synchronize(handle)[1].tolist() == expected
    rows, counts = bps.synchronize(bps.alltoall_async(torch.arange(2 * size) + 100 * rank))
    assert torch.equal(rows, even) and counts.tolist() == [2] * size
    rows, counts = bps.alltoall(torch.arange(2 * size) + 100 * rank, torch.tensor([], dtype=torch.int32))
    assert torch.equal(rows, even) and counts.tolist() == [2] * size
    empty, counts = bps.alltoall(torch.empty(0, 4), [0] * size)
    assert empty.shape == (0, 4) and not counts.any()


def alltoall_keeps_rows_beyond_its_splits(bps: Any, rank: int, size: int) -> None:
    tensor = (torch.arange(size + 2.0) + 100 * rank).requires_grad_()
    received, counts = bps.alltoall(tensor, [1] * size)
    assert received.tolist() == [100 * source + rank for source in range(size)] and counts.tolist() == [1] * size
    (received * (rank + 1)).sum().backward()
    assert tensor.grad.tolist() == [*range(1, size + 1), 0, 0]
    raises(bps.InvalidArgumentError, lambda: bps.alltoall(tensor, [2] * size + [0]), "numbers, one per rank")
    raises(bps.InvalidArgumentError, lambda: bps.alltoall(tensor, [0] * (size - 1) + [size + 3]), "at most the")


def reducescatters(bps: Any, rank: int, size: int) -> None:
    tensor = (torch.arange(14.0).view(7, 2) + 1) * (rank + 1)
    total = (torch.arange(14.0).view(7, 2) + 1) * (size * (size + 1) / 2)
    counts = [7 // size + (r < 7 % size) for r in range(size)]
    mine = slice(sum(counts[:rank]), sum(counts[: rank + 1]))
    before = tensor.clone()
    torch.testing.assert_close(bps.reducescatter(tensor, op=bps.Sum), total[mine])
    torch.testing.assert_close(bps.reducescatter(tensor, name="mean"), total[mine] / size)
    torch.testing.assert_close(
        bps.reducescatter(tensor, op=bps.Sum, prescale_factor=0.5, postscale_factor=4.0), total[mine] * 2
    )
    assert torch.equal(tensor, before)
    handle = bps.grouped_reducescatter_async([tensor, tensor[:1].int()], op=bps.Max)
    first, second = bps.synchronize(handle)
    torch.testing.assert_close(first, (total / (size + 1) * 2)[mine])
    assert second.shape == ((1, 2) if rank == 0 else (0, 2))
    assert torch.equal(
        bps.synchronize(bps.reducescatter_async(tensor, op=bps.Sum)), bps.reducescatter(tensor, op=bps.Sum)
    )
    halved = bps.reducescatter(tensor, compression=bps.Compression.bf16, op=bps.Sum)
    assert halved.dtype is torch.float32 and (halved - total[mine]).abs().sum() <= 0.02 * total[mine].sum()


def grouped(bps: Any, rank: int, size: int) -> None:
    tensors = [torch.ones(3) * rank, torch.ones(2, 2, dtype=torch.int64) * rank, torch.full((), float(rank))]
    total = size * (size - 1) // 2
    sums = bps.grouped_allreduce(tensors, op=bps.Sum, name="group")
    assert [item.shape for item in sums] == [item.shape for item in tensors]
    assert all(item.eq(total).all() for item in sums) and tensors[0].eq(rank).all()
    handle = bps.grouped_allreduce_async(tensors, op=bps.Sum)
    assert all(item.eq(total).all() for item in bps.synchronize(handle))
    again = bps.grouped_allreduce_(tensors, op=bps.Max)
    assert all(a is b for a, b in zip(again, tensors, strict=True)) and all(t.eq(size - 1).all() for t in tensors)


def order_is_free(bps: Any, rank: int, size: int) -> None:
    """Each rank starts the same named operations in another order, and takes the results in a third."""
    names = [f"op{k}" for k in range(12)]
    generator = random.Random(rank)
    for _ in range(3):
        generator.shuffle(names)
        handles = {}
        for name in names:
            number = int(name[2:])
            value = torch.full((number % 3 + 1, 2), float(rank + number))
            call = (bps.allreduce_async, bps.allgather_async, bps.reducescatter_async)[number % 3]
            handles[name] = call(value, name=name)
        generator.shuffle(names)
        for name in names:
            number, found = int(name[2:]), bps.synchronize(handles[name])
            mean = number + (size - 1) / 2
            assert found.numel() == 0 or abs(float(found.mean()) - mean) < 1e-6, (name, found)


def differentiable(bps: Any, rank: int, size: int) -> None:
    def leaf(shape: tuple[int, ...]) -> torch.Tensor:
        return own(rank, torch.float64, shape).requires_grad_()

    tensor = leaf((rank + 1, 2))
    gathered = bps.allgather(tensor, name="d")
    (gathered * torch.arange(float(len(gathered)))[:, None] * (rank + 1)).sum().backward()
    start = rank * (rank + 1) // 2
    weights = torch.arange(start, start + rank + 1, dtype=torch.float64)[:, None].expand(-1, 2)
    torch.testing.assert_close(tensor.grad, weights * ((size + 1) / 2))  # the mean, as in Horovod
    group = [leaf((rank + 1, 2)), leaf((2,))]
    first, second = bps.grouped_allgather(group)
    first.backward(torch.ones_like(first) * rank)  # one after the other, each through the whole group
    second.backward(torch.ones_like(second))
    assert group[0].grad.eq((size - 1) / 2).all() and group[1].grad.eq(1.0).all()
    tensor, splits = leaf((2 * size, 2)), [2] * size
    received, _ = bps.alltoall(tensor, splits)
    (received * (rank + 1)).sum().backward()
    expected = torch.arange(1, size + 1, dtype=torch.float64).repeat_interleave(2)[:, None].expand(-1, 2)
    torch.testing.assert_close(tensor.grad, expected)
    for op, factor in ((bps.Sum, float(size)), (bps.Average, 1.0)):
        tensor = leaf((size + 1, 2))
        (bps.reducescatter(tensor, op=op, prescale_factor=2.0) * (rank + 1)).sum().backward()
        owners = torch.tensor([1, *range(1, size + 1)], dtype=torch.float64)[:, None].expand(-1, 2)
        torch.testing.assert_close(tensor.grad, owners * 2.0 * factor)
        group = [leaf((size, 2)), leaf((2 * size,))]
        for item in bps.grouped_reducescatter(group, op=op):
            item.backward(torch.ones_like(item))
        assert all(item.grad.eq(factor).all() for item in group)
    pair = [leaf((2,)), leaf((3, 2))]
    sum(item.sum() for item in bps.grouped_allreduce(pair, op=bps.Sum)).backward()
    assert all(item.grad.eq(size).all() for item in pair)
    raises(bps.InvalidArgumentError, lambda: bps.reducescatter(leaf((size,)), op=bps.Max).sum().backward(), "MAX")


def sparse(bps: Any, rank: int, size: int) -> None:
    table = torch.nn.Embedding(10, 3, sparse=True, dtype=torch.float64)
    with torch.no_grad():
        table.weight.fill_(1.0)
    table(torch.tensor([rank, rank, 7] if rank else [], dtype=torch.int64)).sum().backward()
    dense = bps.allreduce(table.weight.grad.to_dense())
    finish = bps.sparse_allreduce_async(table.weight.grad, name="rows")
    result = finish()
    assert result.is_sparse and result.is_coalesced()
    torch.testing.assert_close(result.to_dense(), dense)
    torch.testing.assert_close(bps.sparse_allreduce_async(table.weight.grad, op=bps.Sum)().to_dense(), dense * size)
    raises(bps.InvalidArgumentError, lambda: bps.sparse_allreduce_async(torch.ones(2)), "COO")
    raises(bps.InvalidArgumentError, lambda: bps.sparse_allreduce_async(table.weight.grad, op=bps.Max), "MAX")


def adasum(bps: Any, rank: int, size: int) -> None:
    tensor = torch.zeros(size, dtype=torch.float64)
    tensor[rank] = rank + 1.0
    if size & (size - 1):
        raises(bps.InvalidArgumentError, lambda: bps.allreduce(tensor, op=bps.Adasum), "power of two")
        return
    assert bps.allreduce(tensor, op=bps.Adasum).tolist() == [r + 1.0 for r in range(size)]  # orthogonal: their sum
    assert bps.allreduce(torch.ones(4), op=bps.Adasum, name="same").tolist() == [1.0] * 4  # equal: their mean
    mixed = torch.randn(50, generator=torch.Generator().manual_seed(rank))
    same_everywhere(bps, bps.allreduce(mixed, op=bps.Adasum))
    parts = bps.grouped_allreduce([torch.ones(2), torch.zeros(3)], op=bps.Adasum)
    assert parts[0].tolist() == [1.0] * 2 and parts[1].tolist() == [0.0] * 3
    raises(bps.InvalidArgumentError, lambda: bps.allreduce(torch.ones(2).int(), op=bps.Adasum), "floating")


def process_sets(bps: Any, rank: int, size: int) -> None:
    assert bps.global_process_set.ranks == list(range(size)) and bps.global_process_set.included()
    assert (bps.global_process_set.rank(), bps.global_process_set.size()) == (rank, size)
    assert bps.allreduce(torch.ones(1), op=bps.Sum, process_set=bps.global_process_set).item() == size
    assert str(bps.global_process_set) == f"ProcessSet(process_set_id=0, ranks={list(range(size))}, mpi_comm=None)"
    raises(bps.InvalidArgumentError, lambda: bps.ProcessSet([size]) and bps.add_process_set([size]), "ranks")
    if size < 3:
        return
    even = bps.add_process_set(bps.ProcessSet(range(0, size, 2)))
    odd = bps.add_process_set(range(1, size, 2))
    mine, other = (even, odd) if rank % 2 == 0 else (odd, even)
    assert mine.included() and not other.included() and mine.ranks[mine.rank()] == rank
    raises(bps.InvalidArgumentError, lambda: bps.allreduce(torch.ones(1), process_set=other), "is not in process set")
    raises(bps.InvalidArgumentError, lambda: bps.add_process_set(even), "already")
    within(bps, rank, mine)
    assert bps.remove_process_set(odd) and not bps.remove_process_set(odd)
    assert not bps.remove_process_set(bps.global_process_set)
    raises(bps.InvalidArgumentError, lambda: bps.allreduce(torch.ones(1), process_set=odd), "is not known")
    assert (odd.size(), odd.rank()) == (None, None) and str(odd).startswith("ProcessSet(process_set_id=None, ranks=[1")
    again = bps.add_process_set(odd)
    if again.included():
        assert bps.allreduce(torch.ones(1), op=bps.Sum, process_set=again).item() == again.size()


def within(bps: Any, rank: int, mine: Any) -> None:
    """Every kind of operation over one process set, which has nothing to wait for from the others."""
    members, last = mine.ranks, mine.ranks[-1]
    value = torch.full((2,), float(rank))
    assert bps.allreduce(value, name="same name", op=bps.Sum, process_set=mine).tolist() == [float(sum(members))] * 2
    assert bps.allgather(value[:1], process_set=mine).tolist() == [float(r) for r in members]
    assert bps.broadcast(value, last, process_set=mine).tolist() == [float(last)] * 2
    assert bps.broadcast_object({"from": rank}, last, process_set=mine) == {"from": last}
    in_horovods_places(bps, value, last, mine)
    assert bps.allgather_object(rank, process_set=mine) == members
    received, _ = bps.alltoall(torch.full((len(members),), rank), [1] * len(members), process_set=mine)
    assert received.tolist() == members
    shard = bps.reducescatter(torch.ones(len(members), 2), op=bps.Sum, process_set=mine)
    assert shard.tolist() == [[float(len(members))] * 2]
    state = {"weight": torch.full((3,), float(rank))}
    bps.broadcast_parameters(state, last, process_set=mine)
    assert state["weight"].tolist() == [float(last)] * 3
    weight = value.clone().requires_grad_()
    bps.allreduce(weight, op=bps.Sum, process_set=mine).sum().backward()
    assert weight.grad.eq(len(members)).all()
    trains(bps, rank, mine)
    outsider = next(r for r in range(9) if r not in members)
    raises(bps.InvalidArgumentError, lambda: bps.broadcast(value, outsider, process_set=mine), "root_rank")


def in_horovods_places(bps: Any, value: torch.Tensor, root: int, mine: Any) -> None:
    """The process set comes fourth in Horovod's broadcasts."""
    handles = [bps.broadcast_async(value, root, "fourth", mine), bps.broadcast_async_(value.clone(), root, None, mine)]
    found = [bps.broadcast(value, root, None, mine), bps.broadcast_(value.clone(), root, "in place", mine)]
    assert all(item.tolist() == [float(root)] * 2 for item in [*found, *map(bps.synchronize, handles)])
    assert bps.broadcast_object(int(value[0]), root, "object", mine) == root
    assert bps.allgather_object(int(value[0]), "objects", mine) == mine.ranks
    weight = torch.nn.Parameter(value.clone())
    optimizer = torch.optim.SGD([weight], lr=float(value[0]))
    bps.broadcast_parameters({"weight": weight.data}, root, mine)
    bps.broadcast_optimizer_state(optimizer, root, None, mine)
    assert weight.tolist() == [float(root)] * 2 and optimizer.param_groups[0]["lr"] == float(root)


def trains(bps: Any, rank: int, mine: Any) -> None:
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = bps.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0), process_set=mine)
    (parameter * rank).sum().backward()
    optimizer.step()
    assert parameter.tolist() == [-sum(mine.ranks) / mine.size()] * 2
    assert optimizer.route == ("allreduce" if mine.size() > 1 else "none")


def barriers(bps: Any, rank: int, size: int) -> None:
    """Of all, and of a set's ranks only: the others are somewhere else."""
    bps.barrier()
    bps.barrier(bps.global_process_set)
    if size < 3:
        return
    most = bps.add_process_set(range(1, size))
    if most.included():
        for _ in range(3):
            bps.barrier(process_set=most)
    else:
        raises(bps.InvalidArgumentError, lambda: bps.barrier(most), "is not in process set")
    late = torch.zeros(1)
    if rank == 1:
        time.sleep(0.2)
        late = torch.ones(1)
    if most.included():
        bps.barrier(most)
        assert bps.allreduce(late, op=bps.Sum, process_set=most).item() == 1.0


def names_for_handlers(bps: Any, rank: int, size: int) -> None:
    """What Horovod's scripts catch, and what they don't: a caller's own mistakes."""
    assert issubclass(bps.HorovodInternalError, RuntimeError)
    for kind in (bps.MismatchError, bps.StalledError, bps.PeerLostError, bps.ShutdownError, bps.DeadlineError):
        assert issubclass(kind, bps.HorovodInternalError)
    assert not issubclass(bps.InvalidArgumentError, bps.HorovodInternalError)
    assert bps.HostsUpdatedInterrupt(True).skip_sync and issubclass(bps.HostsUpdatedInterrupt, RuntimeError)
    raises(AttributeError, lambda: bps.no_such_name, "no_such_name")
    if size > 1:
        raises(bps.HorovodInternalError, lambda: bps.allgather(torch.ones(2, 3 + rank)), "disagree")


def equal_hosts(bps: Any, rank: int, size: int) -> None:
    """All ranks of these worlds are on one host."""
    assert bps.is_homogeneous() is True
    assert (bps.cross_size(), bps.cross_rank()) == (1, 0)


def outside_nothing_is_sent(bps: Any, rank: int, size: int) -> None:
    """On ranks outside of its process set a distributed optimizer is the plain one."""
    if size == 1:
        return
    first = bps.add_process_set([0])
    most = bps.add_process_set(range(size - 1)) if size > 2 else first
    for mine in (first, most):
        for options in ({}, {"op": bps.Adasum}) if mine.size() & (mine.size() - 1) == 0 else ({},):
            parameter = torch.nn.Parameter(torch.zeros(2))
            optimizer = bps.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0), process_set=mine, **options)
            for turn in range(2):
                optimizer.zero_grad()
                (parameter * (rank + 1)).sum().backward()
                optimizer.synchronize()
                if turn or not options:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        optimizer.step()
            if not mine.included():
                assert parameter.tolist() == [-(rank + 1) * (1.0 if options else 2.0)] * 2
                assert optimizer.route == "none" and optimizer.step(lambda: 3.0) == 3.0
                with optimizer.skip_synchronize():
                    optimizer.step()
            optimizer.set_backward_passes_per_step(1)
            optimizer.close()
    bps.remove_process_set(first)
    raises(
        bps.InvalidArgumentError,
        lambda: bps.DistributedOptimizer(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 1.0), process_set=99),
        "is not known",
    )


def refused(bps: Any, rank: int, size: int) -> None:
    ones = torch.ones(2 * size, 2)
    wrong = [
        lambda: bps.allgather(torch.tensor(1.0)),
        lambda: bps.allgather(ones.to("meta")),
        lambda: bps.allgather(ones, compression="thc4"),
        lambda: bps.allgather(ones, compression="powersgd"),
        lambda: bps.allgather(ones, compression=bps.Compression.onebit(feedback=True)),
        lambda: bps.alltoall(ones, [len(ones) + 1] * size),
        lambda: bps.alltoall(ones, [-1, *[1] * (size - 1)]),
        lambda: bps.alltoall(ones, [2 * size]) if size > 1 else bps.alltoall(ones, [1, 1]),
        lambda: bps.alltoall(torch.tensor(1.0)),
        lambda: bps.reducescatter(torch.tensor(1.0)),
        lambda: bps.reducescatter(ones, op="sum"),
        lambda: bps.reducescatter(ones > 0, op=bps.Sum, prescale_factor=2.0),
        lambda: bps.reducescatter(ones, op=bps.Adasum),
        lambda: bps.alltoall(ones, torch.full((size,), 2.0)),
        lambda: bps.alltoall(ones, torch.ones(1, size, dtype=torch.int32)),
        lambda: bps.reducescatter(ones, compression=1),
        lambda: bps.grouped_allreduce([ones, 1]),
        lambda: bps.allgather(ones, process_set=7),
        lambda: bps.DistributedOptimizer(torch.optim.SGD([torch.nn.Parameter(ones)], lr=1.0), route="ring"),
    ]
    for call in wrong:
        raises(bps.InvalidArgumentError, call)
    handle = bps.allgather_async(ones, name="twice")
    raises(bps.InvalidArgumentError, lambda: bps.allgather_async(ones, name="twice"), "in flight")
    bps.synchronize(handle)


def mismatches(bps: Any, rank: int, size: int) -> None:
    """Ranks that disagree are told so at once, all with the same words, and go on."""
    if size == 1:
        return
    last, ones = rank == size - 1, torch.ones(3, 4)
    raises(bps.MismatchError, lambda: bps.allgather(torch.ones(2, 3 if last else 4)), "[2, 3]", "[2, 4]")
    codec = "int4" if last else "int8"
    raises(bps.MismatchError, lambda: bps.allgather(ones, compression=codec), "int:bits=", "another codec")
    raises(bps.MismatchError, lambda: bps.allgather(ones, compression=None if last else codec), "float32", "codec")
    dtype = torch.float64 if last else torch.float32
    raises(bps.MismatchError, lambda: bps.alltoall(torch.ones(size, dtype=dtype)), "float64", "float32")
    raises(bps.MismatchError, lambda: bps.reducescatter(torch.ones(size + last), name="rs"))
    shape = (6, 4) if last else (6, 2, 2)
    raises(bps.MismatchError, lambda: bps.reducescatter(torch.ones(shape)), "[6, 2, 2]", "[6, 4]")
    raises(bps.MismatchError, lambda: bps.reducescatter(torch.ones(6, dtype=dtype)), "float64", "float32")
    assert bps.allgather(torch.tensor([rank])).tolist() == list(range(size))


class Halved:
    """A compressor as Horovod's users write them: one whose context is no dtype."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, float]:
        largest = float(tensor.abs().max())
        return (tensor / 2).double(), largest

    @staticmethod
    def decompress(tensor: torch.Tensor, context: float) -> torch.Tensor:
        return (tensor * 2).float() + context


def own_compressors(bps: Any, rank: int, size: int) -> None:
    """What has Horovod's two functions is called for each tensor, of a group too; gradients refuse it."""
    total = size * (size + 1) / 2
    value = torch.tensor([1.0, -2.0]) * (rank + 1)
    for compression in (Halved, Halved()):
        found = bps.allreduce(value, compression=compression, op=bps.Sum)
        assert found.tolist() == [total + 2.0 * (rank + 1), -2.0 * total + 2.0 * (rank + 1)]
        one, two = bps.grouped_allreduce([value, 10 * value], compression=compression, op=bps.Sum)
        assert torch.equal(one, found) and torch.equal(two, 10 * found)
    shard = bps.reducescatter(torch.ones(size, 2), compression=Halved, op=bps.Sum)
    assert shard.tolist() == [[size + 1.0] * 2]
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    raises(
        bps.InvalidArgumentError,
        lambda: bps.DistributedOptimizer(optimizer, compression=Halved),
        "compress() of its own",
    )
    raises(bps.InvalidArgumentError, lambda: bps.allreduce(value.to_sparse(), compression=Halved), "sparse")


def overs(bps: Any, rank: int, size: int) -> None:
    """A handle is over when it has been synchronized, also by an error; once more gives None, as Horovod's does."""
    handle = bps.allreduce_async(torch.ones(2), op=bps.Sum)
    assert bps.synchronize(handle).tolist() == [float(size)] * 2 and bps.synchronize(handle) is None
    raises(ValueError, lambda: bps.poll(handle))
    for wrong in (0, -1, 10**9, None, "1"):
        raises(ValueError, lambda wrong=wrong: bps.synchronize(wrong), "unknown")
    if size > 1:
        handle = bps.allgather_async(torch.ones(2, 3 + rank))
        raises(bps.HorovodInternalError, lambda: bps.synchronize(handle))
        assert bps.synchronize(handle) is None


SCENARIOS = [
    gathers, coded_gathers, alltoalls, alltoall_keeps_rows_beyond_its_splits, reducescatters, grouped,
    own_compressors, overs, order_is_free, differentiable, sparse, adasum, process_sets, barriers,
    names_for_handlers, equal_hosts, outside_nothing_is_sent, refused, mismatches,
]  # fmt: skip
"""Bodies that need nothing but (bps, rank, size)."""
