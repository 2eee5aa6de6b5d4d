"""What every call of torch.distributed must do on each rank: bodies for groups of threads and of processes.

The reference is a closed form: rank r brings known numbers, small enough that no element type rounds them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from byteps_like.dtypes import Op
from byteps_like.torch.c10d.tensors import OPS
from byteps_like.torch.device.tensors import WIRE_DTYPES

REDUCED = {
    dist.ReduceOp.SUM: lambda stack: stack.sum(0),
    dist.ReduceOp.MAX: lambda stack: stack.amax(0),
    dist.ReduceOp.MIN: lambda stack: stack.amin(0),
    dist.ReduceOp.PRODUCT: lambda stack: stack.prod(0),
}


def _mine(rank: int, dtype: torch.dtype, count: int = 5) -> torch.Tensor:
    return ((torch.arange(count) + rank) % 3 + 1).to(dtype)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.complex128 if dtype.is_complex else torch.float64


def _reduced(op: Any, size: int, dtype: torch.dtype, count: int = 5) -> torch.Tensor:
    stack = torch.stack([_mine(rank, dtype, count) for rank in range(size)])
    return REDUCED[op](stack.to(_wide(dtype))).to(dtype)


def _check(found: torch.Tensor, wanted: torch.Tensor) -> None:
    same = found.dtype == wanted.dtype and found.shape == wanted.shape
    assert same and bool((found.to(_wide(found.dtype)) == wanted.to(_wide(wanted.dtype))).all()), (found, wanted)


def all_reduce(group: Any, rank: int, size: int) -> None:
    for dtype in WIRE_DTYPES:
        for op in REDUCED:
            if dtype.is_complex and op in (dist.ReduceOp.MAX, dist.ReduceOp.MIN):
                continue
            tensor = _mine(rank, dtype)
            group.allreduce([tensor], op).wait()
            _check(tensor, _reduced(op, size, dtype))


def all_reduce_average(group: Any, rank: int, size: int) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        tensor = torch.full((7,), 2.0 * size * rank, dtype=dtype)
        dist.all_reduce(tensor, dist.ReduceOp.AVG, group=group)
        _check(tensor, torch.full((7,), size * (size - 1.0), dtype=dtype))


def all_reduce_premultiplied(group: Any, rank: int, size: int) -> None:
    op = dist._make_nccl_premul_sum(0.5)
    tensor = torch.full((3,), 2.0 * rank)
    group.allreduce([tensor], op).wait()
    _check(tensor, torch.full((3,), size * (size - 1) / 2))


def all_reduce_bits(group: Any, rank: int, size: int) -> None:
    if Op.__members__.get("BXOR") is None:
        return
    for dtype in (kind for kind in WIRE_DTYPES if not kind.is_floating_point and not kind.is_complex):
        numbers = [1, 1, 1] if dtype is torch.bool else [12 + rank, 7 << (rank % 2), 1 << rank]
        everything = [[1, 1, 1] if dtype is torch.bool else [12 + r, 7 << (r % 2), 1 << r] for r in range(size)]
        for op in (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR):
            tensor = torch.tensor(numbers).to(dtype)
            group.allreduce([tensor], op).wait()
            wanted = torch.tensor(everything[0])
            for other in everything[1:]:
                mix = {"BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}[_name(op)]
                wanted = mix(wanted, torch.tensor(other))
            _check(tensor, wanted.to(dtype))


def _name(op: Any) -> str:
    return OPS[hash(op)].name


def reduce(group: Any, rank: int, size: int) -> None:
    for root in range(size):
        tensor = _mine(rank, torch.int64)
        dist.reduce(tensor, group_dst=root, group=group)
        _check(tensor, _reduced(dist.ReduceOp.SUM, size, torch.int64) if rank == root else _mine(rank, torch.int64))


def reduce_scatter(group: Any, rank: int, size: int) -> None:
    output = torch.empty(4)
    dist.reduce_scatter(output, [torch.full((4,), float(part + rank)) for part in range(size)], group=group)
    _check(output, torch.full((4,), size * rank + size * (size - 1) / 2))
    uneven = [torch.full((part + 1,), float(rank)) for part in range(size)]
    output = torch.empty(rank + 1)
    group.reduce_scatter([output], [uneven]).wait()
    _check(output, torch.full((rank + 1,), size * (size - 1) / 2))


def reduce_scatter_single(group: Any, rank: int, size: int) -> None:
    whole = torch.arange(3 * size, dtype=torch.float32) * (rank + 1)
    wanted = torch.arange(3 * size)[3 * rank : 3 * rank + 3] * size * (size + 1) / 2
    for name in ("reduce_scatter_single", "_reduce_scatter_base"):
        output = torch.empty(3)
        getattr(group, name)(output, whole).wait()
        _check(output, wanted)
    group.reduce_scatter_single(whole[3 * rank : 3 * rank + 3], whole).wait()
    _check(whole[3 * rank : 3 * rank + 3], wanted)


def broadcast(group: Any, rank: int, size: int) -> None:
    for dtype in [*WIRE_DTYPES, torch.float8_e8m0fnu]:
        for root in range(size):
            tensor = _mine(rank, torch.float32).to(dtype)
            dist.broadcast(tensor, group_src=root, group=group)
            _check(tensor, _mine(root, torch.float32).to(dtype))


def all_gather(group: Any, rank: int, size: int) -> None:
    for dtype in WIRE_DTYPES:
        outputs = [torch.empty(5, dtype=dtype) for _ in range(size)]
        dist.all_gather(outputs, _mine(rank, dtype), group=group)
        for other, output in enumerate(outputs):
            _check(output, _mine(other, dtype))
    uneven = [torch.empty(other) for other in range(size)]
    group.allgather([uneven], [torch.full((rank,), float(rank))]).wait()
    assert [tensor.tolist() for tensor in uneven] == [[float(other)] * other for other in range(size)]


def all_gather_single(group: Any, rank: int, size: int) -> None:
    wanted = torch.cat([_mine(other, torch.float32) for other in range(size)])
    for name in ("all_gather_single", "_allgather_base"):
        output = torch.empty(5 * size)
        getattr(group, name)(output, _mine(rank, torch.float32)).wait()
        _check(output, wanted)
    output[5 * rank : 5 * rank + 5] = _mine(rank, torch.float32)
    group.all_gather_single(output, output[5 * rank : 5 * rank + 5]).wait()
    _check(output, wanted)


def gather_and_scatter(group: Any, rank: int, size: int) -> None:
    for root in range(size):
        rows = [torch.empty(2, 3) for _ in range(size)] if rank == root else None
        dist.gather(torch.full((2, 3), float(rank)), rows, group_dst=root, group=group)
        assert rows is None or [row[1, 2].item() for row in rows] == list(range(size))
        mine = torch.empty(2, 3)
        dist.scatter(mine, [row * 2 for row in rows] if rows else None, group_src=root, group=group)
        _check(mine, torch.full((2, 3), 2.0 * rank))


def all_to_all_single(group: Any, rank: int, size: int) -> None:
    whole = torch.arange(2 * size) + 100 * rank
    output = torch.empty_like(whole)
    dist.all_to_all_single(output, whole, group=group)
    wanted = torch.cat([torch.tensor([2 * rank, 2 * rank + 1]) + 100 * other for other in range(size)])
    _check(output, wanted)
    for name in ("all_to_all_single", "alltoall_base"):
        output = torch.empty_like(whole)
        getattr(group, name)(output, whole, [], [], dist.AllToAllOptions()).wait()
        _check(output, wanted)


def all_to_all_uneven(group: Any, rank: int, size: int) -> None:
    """Rank r sends s * (r % 2) rows of two to rank s: some send nothing."""
    sent = [other * (rank % 2) for other in range(size)]
    received = [rank * (other % 2) for other in range(size)]
    source = torch.full((sum(sent), 2), float(rank))
    output = torch.empty(sum(received), 2)
    dist.all_to_all_single(output, source, received, sent, group=group)
    assert output[:, 1].tolist() == [float(other) for other in range(size) for _ in range(received[other])]


def all_to_all_lists(group: Any, rank: int, size: int) -> None:
    inputs = [torch.full((other + 1,), float(10 * rank + other)) for other in range(size)]
    outputs = [torch.empty(rank + 1) for _ in range(size)]
    dist.all_to_all(outputs, inputs, group=group)
    assert [output.tolist() for output in outputs] == [[10.0 * other + rank] * (rank + 1) for other in range(size)]


def coalesced(group: Any, rank: int, size: int) -> None:
    tensors = [_mine(rank, torch.float32, count) for count in (3, 0, 8)]
    group.allreduce_coalesced(tensors).wait()
    for tensor in tensors:
        _check(tensor, _reduced(dist.ReduceOp.SUM, size, torch.float32, tensor.numel()))
    outputs = [torch.empty(size * count) for count in (1, 4)]
    group.all_gather_single_coalesced(outputs, [torch.full((count,), float(rank)) for count in (1, 4)]).wait()
    assert outputs[1].view(size, 4)[:, 3].tolist() == list(range(size))
    parts = [torch.empty(count) for count in (2, 5)]
    group.reduce_scatter_single_coalesced(parts, [torch.ones(size * count) for count in (2, 5)]).wait()
    assert [part.tolist() for part in parts] == [[size] * 2, [size] * 5]


def all_gather_coalesced(group: Any, rank: int, size: int) -> None:
    for dtype in (torch.float32, torch.complex64, torch.bool):
        mine = [torch.full(shape, rank + 1).to(dtype) for shape in ((2, 3), (0,), (5,))]
        lists = [[torch.empty_like(tensor) for tensor in mine] for _ in range(size)]
        dist.all_gather_coalesced(lists, mine, group=group)
        for other, found in enumerate(lists):
            assert [tensor.shape for tensor in found] == [tensor.shape for tensor in mine]
            assert all((tensor == torch.tensor(other + 1).to(dtype)).all() for tensor in found)


def all_reduce_sparse(group: Any, rank: int, size: int) -> None:
    """Ranks have entries of their own, one that all have, and sums of several calls in flight; rank 0 has none once."""
    for dtype, dense in ((torch.float32, ()), (torch.float64, (3,)), (torch.complex64, (2, 2)), (torch.int64, ())):
        works, found, expected = [], [], []
        for number in range(3):
            entries = [[other + number, 0, size + 4] if other or number else [] for other in range(size)]
            parts = [
                torch.sparse_coo_tensor(
                    torch.tensor([places, places], dtype=torch.int64),
                    torch.full((len(places), *dense), other + 1).to(dtype),
                    (size + 5, size + 6, *dense),
                )
                for other, places in enumerate(entries)
            ]
            found.append(parts[rank])
            expected.append(sum(part.to_dense() for part in parts))
            works.append(group.allreduce([found[-1]]))  # dist's makes a copy of what is sparse and complex
            dist.all_reduce(torch.ones(3), group=group)
        for work in works[::-1]:
            work.wait()
        for tensor, total in zip(found, expected, strict=True):
            assert tensor.is_coalesced() and torch.equal(tensor.to_dense(), total)
    total = torch.eye(3).to_sparse() * (rank + 1)
    dist.all_reduce(total, group=group)
    assert torch.equal(total.to_dense(), torch.eye(3) * size * (size + 1) / 2)
    mean = torch.eye(3).to_sparse() * (rank + 1)
    assert group.allreduce([mean], dist.ReduceOp.AVG).get_future().wait()[0] is mean
    assert torch.equal(mean.to_dense(), torch.eye(3) * (size + 1) / 2)


def coalescing_manager(group: Any, rank: int, size: int) -> None:
    work = None
    group._start_coalescing(torch.device("cpu"))
    gathered = torch.empty(size)
    tensor = torch.full((3,), float(rank))
    dist.broadcast(tensor, group_src=size - 1, group=group)
    group.all_gather_single(gathered, torch.tensor([float(rank)])).wait()
    work = group._end_coalescing(torch.device("cpu"))
    work.wait()
    assert work.is_completed() and tensor.tolist() == [size - 1.0] * 3 and gathered.tolist() == list(range(size))


def point_to_point(group: Any, rank: int, size: int) -> None:
    """A ring with two tags, receives posted after and before sends, in the opposite order of tags."""
    if size == 1:
        return
    after, before = (rank + 1) % size, (rank - 1) % size
    wanted = [torch.empty(4), torch.empty(2)]
    works = [
        group.send([torch.full((4,), float(rank))], after, 7),
        group.send([torch.full((2,), -1.0 * rank)], after, 8),
    ]
    works += [group.recv([wanted[1]], before, 8), group.recv([wanted[0]], before, 7)]
    for work in works:
        work.wait()
    assert wanted[0].tolist() == [float(before)] * 4 and wanted[1].tolist() == [-1.0 * before] * 2


def point_to_point_in_order(group: Any, rank: int, size: int) -> None:
    if rank == 0:
        works = [group.send([torch.tensor([number])], size - 1) for number in range(20) if size > 1]
    else:
        places = [torch.zeros(1, dtype=torch.int64) for _ in range(20)]
        works = [group.recv([place], 0) for place in places] if rank == size - 1 else []
    for work in works:
        work.wait()
    if rank and rank == size - 1:
        assert [place.item() for place in places] == list(range(20))


def receive_from_anybody(group: Any, rank: int, size: int) -> None:
    if rank:
        group.send([torch.tensor([float(rank)])], 0, 3).wait()
        return
    senders = set()
    for _ in range(size - 1):
        place = torch.zeros(1)
        work = group.recv_anysource([place], 3)
        work.wait()
        assert work._source_rank() == place.item()
        senders.add(int(place.item()))
    assert senders == set(range(1, size))


def point_to_point_passes_collectives(group: Any, rank: int, size: int) -> None:
    """A receive posted before a collective and served after it holds nothing up."""
    if size == 1:
        return
    place = torch.zeros(3)
    early = group.recv([place], 1) if rank == 0 else None
    group.barrier().wait()
    if rank == 1:
        group.send([torch.ones(3)], 0).wait()
    if early is not None:
        early.wait()
        assert place.tolist() == [1.0] * 3


def empty_and_scalar(group: Any, rank: int, size: int) -> None:
    empty = torch.empty(0, 3)
    group.allreduce([empty]).wait()
    group.broadcast([empty], 0).wait()
    group.all_gather_single(torch.empty(0), torch.empty(0)).wait()
    group.reduce_scatter_single(torch.empty(0), torch.empty(0)).wait()
    dist.all_to_all_single(torch.empty(0), torch.empty(0), group=group)
    group.allgather([[torch.empty(0) for _ in range(size)]], [torch.empty(0)]).wait()
    scalar = torch.tensor(1.5)
    group.allreduce([scalar]).wait()
    assert scalar.item() == 1.5 * size


def many_in_flight(group: Any, rank: int, size: int) -> None:
    tensors = [torch.full((number,), float(number + rank)) for number in range(50)]
    works = [group.allreduce([tensor]) for tensor in tensors]
    for number, work in reversed(list(enumerate(works))):
        work.wait()
        assert tensors[number].tolist() == [number * size + size * (size - 1) / 2] * number
        assert work.result()[0] is tensors[number] and work.is_success()


def futures(group: Any, rank: int, size: int) -> None:
    works = [group.allreduce([torch.full((3,), float(rank))]) for _ in range(5)]
    outcomes = [work.get_future().then(lambda done: done.value()[0] * 2) for work in works]
    assert [outcome.wait()[0].item() for outcome in outcomes] == [size * (size - 1.0)] * 5
    assert works[0].get_future() is works[0].get_future()


def sub_groups(group: Any, rank: int, size: int) -> None:
    """Overlapping groups, launched in different orders on different ranks."""
    pairs = [tuple(sorted({first, (first + 1) % size})) for first in range(size)]
    groups = [group.split_group(list(pair), group_name=f"pair {number}") for number, pair in enumerate(pairs)]
    mine = [(number, part) for number, part in enumerate(groups) if part is not None]
    assert {number for number, _ in mine} == {number for number, pair in enumerate(pairs) if rank in pair}
    for _ in range(5):
        tensors = {number: torch.full((2,), float(rank)) for number, _ in mine}
        order = mine if rank % 2 else mine[::-1]
        works = [part.allreduce([tensors[number]]) for number, part in order]
        for work in works:
            work.wait()
        assert all(tensor[0].item() == sum(pairs[number]) for number, tensor in tensors.items())


def barriers(group: Any, rank: int, size: int) -> None:
    from datetime import timedelta

    for _ in range(3):
        group.barrier().wait()
        dist.barrier(group=group)
        group.monitored_barrier(timedelta(seconds=10))


SCENARIOS = [
    all_reduce, all_reduce_average, all_reduce_premultiplied, all_reduce_bits, reduce, reduce_scatter,
    reduce_scatter_single, broadcast, all_gather, all_gather_single, gather_and_scatter, all_to_all_single,
    all_to_all_uneven, all_to_all_lists, coalesced, all_gather_coalesced, all_reduce_sparse, coalescing_manager,
    point_to_point, point_to_point_in_order, receive_from_anybody, point_to_point_passes_collectives, empty_and_scalar,
    many_in_flight, futures, sub_groups, barriers,
]  # fmt: skip
