"""What push_pull and broadcast promise, as seen by one rank: `body(bps, rank, size)`, for threads and processes."""

from __future__ import annotations

from typing import Any

import torch

from tests.scenarios.checks import raises

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64, torch.int16)


def own(rank: int, dtype: torch.dtype, shape: tuple[int, ...] = (5, 3)) -> torch.Tensor:
    """Rank's tensor: small integers, so that sums are exact in every type."""
    count = int(torch.tensor(shape).prod()) if shape else 1
    return ((torch.arange(count) * (rank + 2)) % 7 + rank).reshape(shape).to(dtype)


def stacked(size: int, dtype: torch.dtype, shape: tuple[int, ...] = (5, 3)) -> torch.Tensor:
    """All ranks' tensors, from the same formula, in a type that holds the results."""
    wide = torch.float64 if dtype.is_floating_point else torch.int64
    return torch.stack([own(rank, dtype, shape).to(wide) for rank in range(size)])


def every_type_and_op(bps: Any, rank: int, size: int) -> None:
    for dtype in FLOATS + INTEGERS:
        everybody = stacked(size, dtype)
        mean = everybody.mean(0) if dtype.is_floating_point else everybody.sum(0) // size
        expected = {
            bps.Sum: everybody.sum(0),
            bps.Average: mean,
            bps.Min: everybody.amin(0),
            bps.Max: everybody.amax(0),
        }
        for op, value in expected.items():
            result = bps.push_pull(own(rank, dtype), op=op, name=f"typed.{op.name}.{dtype}")
            assert result.dtype == dtype
            torch.testing.assert_close(result, value.to(dtype), msg=f"{dtype} {op.name} rank {rank}")
    product = bps.push_pull(torch.full((3,), rank + 1, dtype=torch.int64), op=bps.Product)
    assert product.tolist() == [torch.arange(1, size + 1).prod().item()] * 3


def wider_types(bps: Any, rank: int, size: int) -> None:
    for dtype in (torch.complex64, torch.complex128):
        mine = [own(other, dtype) * (1 + 1j) for other in range(size)]
        total, product = torch.stack(mine).sum(0), torch.stack(mine).prod(0)
        assert torch.equal(bps.push_pull(mine[rank], average=False, name=f"sum.{dtype}"), total)
        torch.testing.assert_close(bps.push_pull(mine[rank], name=f"mean.{dtype}"), total / size)
        torch.testing.assert_close(bps.push_pull(mine[rank], op=bps.Product, name=f"product.{dtype}"), product)
    for dtype in (torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2):
        total = stacked(size, torch.int64, (9,)).remainder(3).sum(0)  # few bits, so that 8-bit floats hold them
        result = bps.push_pull(own(rank, torch.int64, (9,)).remainder(3).to(dtype), average=False, name=f"wide.{dtype}")
        assert result.dtype == dtype and torch.equal(result.to(torch.int64), total), dtype


def integer_average_truncates(bps: Any, rank: int, size: int) -> None:
    """Towards zero, as Horovod's and BytePS's do."""
    for dtype in (torch.int8, torch.int16, torch.int32, torch.int64):
        values = torch.tensor([-7, 7, -8] if rank == 0 else [0, 0, 0], dtype=dtype)
        assert bps.push_pull(values).tolist() == [-(7 // size), 7 // size, -(8 // size)]


def bool_is_any_or_all(bps: Any, rank: int, size: int) -> None:
    mask = torch.tensor([True, rank == 0, False])
    assert bps.push_pull(mask, op=bps.Sum).tolist() == [True, True, False]
    assert bps.push_pull(mask).tolist() == [True, size == 1, False]
    assert bps.push_pull(mask, op=bps.Product).tolist() == [True, size == 1, False]
    assert bps.push_pull(mask, average=False).dtype == torch.bool
    assert mask.tolist() == [True, rank == 0, False]


def out_of_place_leaves_input(bps: Any, rank: int, size: int) -> None:
    tensor = own(rank, torch.float32)
    before = tensor.clone()
    result = bps.push_pull(tensor, average=False, name="apart")
    assert torch.equal(tensor, before)
    assert result.data_ptr() != tensor.data_ptr()
    assert torch.equal(result, stacked(size, torch.float32).sum(0).float())
    handle = bps.push_pull_async(tensor, average=False, name="apart")
    assert torch.equal(bps.synchronize(handle), result)
    assert torch.equal(tensor, before)


def in_place_returns_its_tensor(bps: Any, rank: int, size: int) -> None:
    tensor = own(rank, torch.float64)
    version = tensor._version
    assert bps.push_pull_inplace(tensor, average=False) is tensor
    assert torch.equal(tensor, stacked(size, torch.float64).sum(0))
    assert tensor._version > version


def empty_and_scalar(bps: Any, rank: int, size: int) -> None:
    assert bps.push_pull(torch.empty(0), name="empty").shape == (0,)
    assert bps.push_pull(torch.empty(3, 0, 2), name="empty3").shape == (3, 0, 2)
    scalar = bps.push_pull(torch.tensor(float(rank)), op=bps.Sum)
    assert scalar.shape == () and scalar.item() == size * (size - 1) / 2


def strided_input(bps: Any, rank: int, size: int) -> None:
    tensor = own(rank, torch.float32).t()
    assert torch.equal(bps.push_pull(tensor, op=bps.Sum), stacked(size, torch.float32).sum(0).t().float())


def many_in_flight(bps: Any, rank: int, size: int) -> None:
    for _ in range(3):
        handles = [bps.push_pull_async(torch.full((4,), float(rank + k)), average=False) for k in range(8)]
        for k, handle in reversed(list(enumerate(handles))):
            assert bps.synchronize(handle).tolist() == [float(sum(r + k for r in range(size)))] * 4
    handle = bps.push_pull_async_inplace(torch.ones(2), name="polled")
    while not bps.poll(handle):
        pass
    bps.synchronize(handle)


def hundreds_without_a_name(bps: Any, rank: int, size: int) -> None:
    """Begun at once, of several kinds, and synchronized in another order on each rank."""
    sums = [torch.full((4,), float(rank + k)) for k in range(200)]
    handles = [bps.push_pull_async_inplace(tensor, average=False) for tensor in sums]
    gathers = [bps.allgather_async(torch.tensor([rank, k])) for k in range(100)]
    last = bps.push_pull_async(torch.tensor([rank]), op=bps.Max)
    assert bps.push_pull(torch.tensor([rank]), op=bps.Min).tolist() == [0]
    order = range(100) if rank % 2 else reversed(range(100))
    for k in order:
        assert bps.synchronize(handles[2 * k]) is sums[2 * k]
        assert bps.synchronize(gathers[k]).tolist() == [word for one in range(size) for word in (one, k)]
        assert bps.synchronize(handles[2 * k + 1]) is sums[2 * k + 1]
    assert bps.synchronize(last).tolist() == [size - 1] and bps.synchronize(last) is None
    assert [tensor.tolist() for tensor in sums] == [[float(sum(r + k for r in range(size)))] * 4 for k in range(200)]


def a_call_that_others_make_first(bps: Any, rank: int, size: int) -> None:
    """However many without a name are in flight, a rank comes to the call with a name that the others wait in."""
    handles = []
    for number in range(2):
        if rank == size - 1:
            assert bps.push_pull(torch.ones(2), average=False, name=f"first.{number}").tolist() == [float(size)] * 2
        handles += [bps.push_pull_async(torch.full((2,), float(k)), average=False) for k in range(50)]
        if rank < size - 1:
            assert bps.push_pull(torch.ones(2), average=False, name=f"first.{number}").tolist() == [float(size)] * 2
    for k, handle in enumerate(handles):
        assert bps.synchronize(handle).tolist() == [float(size * (k % 50))] * 2


def rounds_of_one_name(bps: Any, rank: int, size: int) -> None:
    for number in range(20):
        result = bps.push_pull(torch.full((3,), float(number * (rank + 1))), average=False, name="again")
        assert result.tolist() == [number * size * (size + 1) / 2] * 3


def broadcasts(bps: Any, rank: int, size: int) -> None:
    for root in range(size):
        tensor = own(rank, torch.bfloat16)
        assert torch.equal(bps.broadcast(tensor, root), own(root, torch.bfloat16))
        assert torch.equal(tensor, own(rank, torch.bfloat16))
        assert bps.broadcast_(tensor, root, name="there") is tensor
        assert torch.equal(tensor, own(root, torch.bfloat16))
    flag = torch.tensor([rank == 0, rank != 0])
    assert bps.synchronize(bps.broadcast_async(flag, size - 1)).tolist() == [size == 1, size != 1]


def gradients_flow(bps: Any, rank: int, size: int) -> None:
    for op, factor in ((bps.Average, 1.0), (bps.Sum, float(size))):
        tensor = own(rank, torch.float64).requires_grad_()
        weight = own(rank + 3, torch.float64)
        (bps.push_pull(tensor, op=op, name="through") * weight).sum().backward()
        expected = torch.stack([own(r + 3, torch.float64) for r in range(size)]).mean(0) * factor
        torch.testing.assert_close(tensor.grad, expected)
    tensor = own(rank, torch.float64).requires_grad_()
    (bps.broadcast(tensor, 0) * (rank + 1)).sum().backward()
    assert tensor.grad.eq((size + 1) / 2 if rank == 0 else 0.0).all()
    for root in range(size):  # its backward ends on all ranks, again and again
        tensor = own(rank, torch.float32).requires_grad_()
        bps.broadcast(tensor, root).backward(torch.full_like(tensor, 2.0))
        assert tensor.grad.eq(2.0 if rank == root else 0.0).all()


def compressed(bps: Any, rank: int, size: int) -> None:
    values = torch.linspace(-3, 3, 50) * (rank + 1)
    mean = (torch.linspace(-3, 3, 50) * (size + 1) / 2).double()
    for compression, tolerance in ((bps.Compression.fp16, 1e-3), (bps.Compression.bf16, 1e-2)):
        for dtype in (torch.float32, torch.float64):
            result = bps.push_pull(values.to(dtype), compression=compression, name=f"{compression.__name__}{dtype}")
            assert result.dtype == dtype
            assert (result.double() - mean).norm() < tolerance * mean.norm()
    assert bps.push_pull(torch.tensor([2**20]), compression=bps.Compression.fp16).item() == 2**20


def scaled(bps: Any, rank: int, size: int) -> None:
    tensor = torch.ones(4)
    result = bps.push_pull(tensor, op=bps.Sum, prescale_factor=0.5, postscale_factor=4.0)
    assert result.tolist() == [2.0 * size] * 4
    assert tensor.tolist() == [1.0] * 4


def integers_are_scaled(bps: Any, rank: int, size: int) -> None:
    """In float64, rounded towards zero: each rank's before the sum, the sum once after it."""
    for dtype in (torch.int8, torch.uint8, torch.int32, torch.int64):
        tensor = torch.tensor([3, 7, 10, 0], dtype=dtype) * (1 if dtype is torch.uint8 else -1)
        one = -1 if dtype.is_signed else 1
        assert bps.allreduce(tensor, op=bps.Sum, prescale_factor=0.5).tolist() == [one * size * k for k in (1, 3, 5, 0)]
        halves = [one * int(0.5 * size * k) for k in (3, 7, 10, 0)]
        assert bps.allreduce(tensor, op=bps.Sum, postscale_factor=0.5).tolist() == halves
        mean = bps.allreduce(tensor if rank == 0 else tensor * 0, postscale_factor=float(size), name=f"once.{dtype}")
        assert mean.tolist() == tensor.tolist()
        assert bps.reducescatter(tensor.repeat(size), op=bps.Sum, prescale_factor=0.5).tolist()[1] == one * size * 3
    big = torch.tensor([2**40], dtype=torch.int64)
    assert bps.grouped_allreduce([big], op=bps.Sum, prescale_factor=2.0)[0].item() == size * 2**41
    raises(bps.InvalidArgumentError, lambda: bps.allreduce(torch.ones(2) > 0, prescale_factor=2.0), "numbers")


def horovod_names(bps: Any, rank: int, size: int) -> None:
    ones = torch.ones(2)
    assert bps.allreduce(ones, name="a", op=bps.Sum).tolist() == [size] * 2
    assert bps.synchronize(bps.allreduce_async(ones, average=False)).tolist() == [size] * 2
    assert bps.synchronize(bps.allreduce_async_(ones.clone(), op=bps.Max)).tolist() == [1.0] * 2
    assert bps.allreduce_(ones.clone(), False, "b").tolist() == [size] * 2
    assert [item.tolist() for item in bps.grouped_allreduce([ones, ones * 2], op=bps.Sum)] == [
        [size] * 2,
        [2 * size] * 2,
    ]
    assert bps.cross_size() * bps.local_size() == size and bps.is_initialized() and not bps.nccl_built()


def objects(bps: Any, rank: int, size: int) -> None:
    for root in range(size):
        sent = {"rank": rank, "text": "x" * (10 * 4**rank), "call": lambda value, root=root: value + root}
        received = bps.broadcast_object(sent if rank == root else None, root)
        assert received["rank"] == root and received["call"](1) == 1 + root and len(received["text"]) == 10 * 4**root
    assert bps.allgather_object(("rank", rank, "y" * rank)) == [("rank", r, "y" * r) for r in range(size)]


def wrong_arguments(bps: Any, rank: int, size: int) -> None:
    ones = torch.ones(2, 2)
    wrong = [
        lambda: bps.push_pull(ones.to(torch.complex64), op=bps.Min),
        lambda: bps.push_pull(ones.to(torch.complex32)),
        lambda: bps.push_pull(ones.to("meta")),
        lambda: bps.push_pull(ones.to_sparse_csr()),
        lambda: bps.push_pull(ones.to_sparse(), op=bps.Max),
        lambda: bps.push_pull(ones.to_sparse(), compression="fp16"),
        lambda: bps.push_pull_inplace(ones.to_sparse()),
        lambda: bps.push_pull([1.0]),
        lambda: bps.push_pull(ones, average=True, op=bps.Sum),
        lambda: bps.push_pull(ones, op="sum"),
        lambda: bps.push_pull(ones, process_set=3),
        lambda: bps.push_pull(ones, compression="fp17"),
        lambda: bps.push_pull_inplace(torch.ones(2, 3).t()),
        lambda: bps.push_pull(torch.ones(2, dtype=torch.bool), postscale_factor=2.0),
        lambda: bps.broadcast(ones, size),
        lambda: bps.broadcast_parameters({"a": ones}, root_rank=-1),
        lambda: bps.synchronize(10**9),
        lambda: bps.declare(""),
    ]
    for number, call in enumerate(wrong):
        try:
            call()
        except bps.InvalidArgumentError as error:
            assert str(error)
        else:
            raise AssertionError(f"call {number} was accepted")


SCENARIOS = [
    every_type_and_op, wider_types, integer_average_truncates, bool_is_any_or_all, out_of_place_leaves_input,
    in_place_returns_its_tensor, empty_and_scalar, strided_input, many_in_flight, hundreds_without_a_name,
    a_call_that_others_make_first, rounds_of_one_name, broadcasts, gradients_flow, compressed, scaled,
    integers_are_scaled, horovod_names, objects, wrong_arguments,
]  # fmt: skip
"""Bodies that need nothing but (bps, rank, size)."""
