"""Calls in which one rank deviates, and what all ranks see of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from byteps_like.errors import MismatchError
from byteps_like.torch.job import lookout
from tests.fault.bodies import Seen, watch

Call = Callable[[Any, bool, "str | None"], object]
"""`call(bps, deviates, name)`."""


def _shape(bps: Any, odd: bool, name: str | None) -> object:
    return bps.allreduce(torch.ones(4 + odd), name=name)


def _order_of_dimensions(bps: Any, odd: bool, name: str | None) -> object:
    return bps.allreduce(torch.ones((2, 3) if odd else (3, 2)), name=name)


def _partitions(bps: Any, odd: bool, name: str | None) -> object:
    return bps.allreduce(torch.ones(3_000_000 if odd else 4_000_000), name=name)


def _dtype(bps: Any, odd: bool, name: str | None) -> object:
    return bps.allreduce(torch.ones(4, dtype=torch.int32 if odd else torch.float32), name=name)


def _operation(bps: Any, odd: bool, name: str | None) -> object:
    return bps.allreduce(torch.ones(4), name=name, op=bps.Sum if odd else bps.Max)


def _factor(bps: Any, odd: bool, name: str | None) -> object:
    return bps.allreduce(torch.ones(4), name=name, op=bps.Sum, prescale_factor=2.0 if odd else 1.0)


def _codec(bps: Any, odd: bool, name: str | None) -> object:
    compression = bps.Compression.int8() if odd else bps.Compression.none
    return bps.allreduce(torch.ones(4096), name=name, compression=compression)


def _root(bps: Any, odd: bool, name: str | None) -> object:
    return bps.broadcast(torch.ones(4), root_rank=1 if odd else 0, name=name)


def _broadcast_shape(bps: Any, odd: bool, name: str | None) -> object:
    return bps.broadcast(torch.ones(4 + odd), root_rank=0, name=name)


def _gather_or_reduce(bps: Any, odd: bool, name: str | None) -> object:
    return bps.allgather(torch.ones(4), name=name) if odd else bps.allreduce(torch.ones(4), name=name)


def _broadcast_or_reduce(bps: Any, odd: bool, name: str | None) -> object:
    return bps.broadcast(torch.ones(4), 0, name=name) if odd else bps.allreduce(torch.ones(4), name=name)


def _alltoall_or_gather(bps: Any, odd: bool, name: str | None) -> object:
    return bps.alltoall(torch.ones(6), name=name) if odd else bps.allgather(torch.ones(6), name=name)


def _gathered_rows(bps: Any, odd: bool, name: str | None) -> object:
    return bps.allgather(torch.ones(2, 3 + odd), name=name)


def _gathered_dtype(bps: Any, odd: bool, name: str | None) -> object:
    return bps.allgather(torch.ones(2, dtype=torch.int64 if odd else torch.float32), name=name)


def _scattered_shape(bps: Any, odd: bool, name: str | None) -> object:
    return bps.reducescatter(torch.ones(6, 2 + odd), name=name)


def _sparse_or_dense(bps: Any, odd: bool, name: str | None) -> object:
    tensor = torch.eye(4)
    return bps.allreduce(tensor.to_sparse() if odd else tensor, name=name)


KINDS: dict[str, Call] = {
    "shape": _shape,
    "order of dimensions": _order_of_dimensions,
    "number of partitions": _partitions,
    "dtype": _dtype,
    "operation": _operation,
    "factor": _factor,
    "codec": _codec,
    "root": _root,
    "broadcast shape": _broadcast_shape,
    "gather or reduce": _gather_or_reduce,
    "broadcast or reduce": _broadcast_or_reduce,
    "alltoall or gather": _alltoall_or_gather,
    "gathered rows": _gathered_rows,
    "gathered dtype": _gathered_dtype,
    "scattered shape": _scattered_shape,
    "sparse or dense": _sparse_or_dense,
}


def _sum(bps: Any, name: str | None) -> float:
    return float(bps.allreduce(torch.full((4,), bps.rank() + 1.0), op=bps.Sum, name=name)[0])


def every_kind(bps: Any, rank: int, size: int, named: bool, deviant: int) -> dict[str, tuple[Seen, Seen, float]]:
    """Each kind: at the first use of a name, and after one that went well; and the next call of that name."""
    found: dict[str, tuple[Seen, Seen, float]] = {}
    for kind, call in KINDS.items():
        name = f"layer.{kind}" if named else None
        bps.barrier()
        first = watch(lambda call=call, name=name: call(bps, rank == deviant, name))
        call(bps, False, name)
        second = watch(lambda call=call, name=name: call(bps, rank == deviant, name))
        found[kind] = first, second, _sum(bps, name)
    return found


def many_in_a_row(bps: Any, rank: int, size: int, count: int, named: bool) -> tuple[list[Seen], float]:
    """One mismatch after the other, a different rank deviating each time."""
    name = "layer.weight" if named else None
    seen = [
        watch(lambda number=number: _shape(bps, rank == number % size, name)) for number in range(count)
    ]  # fmt: skip
    return seen, _sum(bps, name)


def others_go_on(bps: Any, rank: int, size: int, named: bool) -> tuple[list[str], float]:
    """Of five operations in flight at a time the ranks disagree on one."""
    handles = []
    for number in range(5):
        tensor = torch.ones(4 + (number == 2 and rank == 1))
        handles.append(bps.allreduce_async(tensor, op=bps.Sum, name=f"t{number}" if named else None))
    found = []
    for handle in handles:
        try:
            bps.synchronize(handle)
        except MismatchError:
            found.append("MismatchError")
        else:
            found.append("")
    return found, _sum(bps, None)


def late_rank(bps: Any, rank: int, size: int, named: bool) -> tuple[Seen, float]:
    """The last rank comes when the others have failed already."""
    name = "layer.weight" if named else None
    if rank == 2:
        time.sleep(1.0)
    seen = watch(lambda: _shape(bps, rank == 1, name))
    return seen, _sum(bps, name)


def twice(bps: Any, rank: int, size: int) -> tuple[Seen, float, float]:
    """One name is used while it is in flight; then again."""
    if rank != 0:
        bps.barrier()  # rank 0 has tried
    handle = bps.allreduce_async(torch.ones(3), op=bps.Sum, name="layer.weight")
    seen = watch(lambda: bps.allreduce_async(torch.ones(3), op=bps.Sum, name="layer.weight")) if rank == 0 else None
    if rank == 0:
        bps.barrier()
    first = float(bps.synchronize(handle)[0])
    return seen, first, _sum(bps, "layer.weight")


def other_synchronization(bps: Any, rank: int, size: int) -> tuple[float, float, float]:
    """Calls without a name meet in the order in which they are begun, whenever they are synchronized."""
    if rank == 0:
        first = bps.allreduce_async(torch.full((4,), 1.0), op=bps.Sum)
        second = bps.allreduce_async(torch.full((4,), 10.0), op=bps.Sum)
        results = bps.synchronize(first), bps.synchronize(second)
    else:
        results = bps.allreduce(torch.full((4,), 1.0), op=bps.Sum), bps.allreduce(torch.full((4,), 10.0), op=bps.Sum)
    return float(results[0][0]), float(results[1][0]), _sum(bps, None)


def more_than_lanes(bps: Any, rank: int, size: int) -> list[float]:
    handles = [bps.allreduce_async(torch.full((2,), float(number)), op=bps.Sum) for number in range(100)]
    return [float(bps.synchronize(handle)[0]) for handle in handles]


def standstills(bps: Any, rank: int, size: int, kind: str, deviant: int) -> list[tuple[Seen, float, float]]:
    """Rank `deviant` begins something else in place of what the others begin; then all make calls of either kind."""
    some = bps.add_process_set([0, 1])

    def call(odd: bool) -> object:
        where = some if odd and kind == "process set" else bps.global_process_set
        name = "layer.weight" if odd and kind == "name" else None
        return bps.allreduce(torch.ones(4), process_set=where, name=name)

    found = []
    for _ in range(3):
        seen = watch(lambda: call(rank == deviant))
        of_some = float(bps.allreduce(torch.ones(4), op=bps.Sum, process_set=some)[0]) if rank < 2 else 2.0
        found.append((seen, _sum(bps, None) + _sum(bps, "layer.weight"), of_some))
    return found


def roots(bps: Any, rank: int, size: int, deviant: int) -> list[tuple[str, Seen, list[int]]]:
    """Rank `deviant` has another root; and then broadcasts in place of gathering."""
    root = 1 if rank == deviant else 2
    weight = torch.nn.Parameter(torch.ones(3))
    calls: dict[str, Callable[[], object]] = {
        "broadcast_object": lambda: bps.broadcast_object([rank], root),
        "broadcast_parameters": lambda: bps.broadcast_parameters({"weight": weight}, root),
        "broadcast_optimizer_state": lambda: bps.broadcast_optimizer_state(torch.optim.SGD([weight], lr=0.1), root),
        "allgather_object": lambda: bps.broadcast_object(1, 0) if rank == deviant else bps.allgather_object(1),
    }
    return [(name, watch(call), bps.allgather_object(rank)) for name, call in calls.items()]


def object_or_sum(bps: Any, rank: int, size: int) -> tuple[Seen, list[int], float]:
    seen = watch(lambda: bps.broadcast_object(1, 0) if rank == 1 else _sum(bps, "layer.weight"))
    return seen, bps.allgather_object(rank), _sum(bps, "layer.weight")


def will_be_late(bps: Any, rank: int, size: int) -> None:
    """In the next world the last rank takes its time to come out of init(): the others are ahead by then."""
    if rank != size - 1:
        return
    make = lookout.Lookout.__init__

    def make_late(*arguments: Any) -> None:
        lookout.Lookout.__init__ = make  # type: ignore[method-assign]
        time.sleep(1.5)
        make(*arguments)

    lookout.Lookout.__init__ = make_late  # type: ignore[method-assign]


def joined(bps: Any, rank: int, size: int, named: bool) -> tuple[list[Seen], list[float], list[float]]:
    """The last rank has joined; the others disagree again and again, then agree, and at last all are there again."""
    name = "layer.weight" if named else None
    seen, sums = [], []
    if rank != size - 1:
        for number in range(6):
            seen.append(watch(lambda number=number: _shape(bps, rank == number % 2, name)))
            sums.append(_sum(bps, name))
    bps.join()
    return seen, sums, [_sum(bps, name), _sum(bps, "layer.weight")]


def adasum(bps: Any, rank: int, size: int, named: bool, deviant: int) -> tuple[Seen, float]:
    name = "layer.weight" if named else None
    seen = watch(lambda: bps.allreduce(torch.ones(4), op=bps.Adasum if rank == deviant else bps.Sum, name=name))
    return seen, _sum(bps, name)


def other_orders(bps: Any, rank: int, size: int) -> list[float]:
    """Names in another order on each rank, with a pause that is longer than anybody's patience: nothing is wrong."""
    names = ["a", "b", "c"]
    mine = names[rank:] + names[:rank]
    handles = {}
    for name in mine:
        handles[name] = bps.allreduce_async(torch.ones(4), op=bps.Sum, name=name)
        time.sleep(0.5 if rank == 1 else 0.0)
    return [float(bps.synchronize(handles[name])[0]) for name in mine]


def other_thread(bps: Any, rank: int, size: int) -> list[float]:
    """One thread waits for a name while another has yet to begin what the other ranks wait for: nothing is wrong."""
    found: list[float] = []

    def aside() -> None:
        found.append(_sum(bps, "beside"))
        time.sleep(1.0 if rank == 0 else 0.0)
        found.append(_sum(bps, "beside"))

    thread = threading.Thread(target=aside)
    thread.start()
    time.sleep(0.3)
    if rank != 0:
        thread.join()
    found.append(_sum(bps, "main"))
    thread.join()
    return found


def alternating(bps: Any, rank: int, size: int, count: int) -> tuple[int, int, bool]:
    """One name, ever other shapes: how many names are known before and after, and whether all sums were right."""
    from byteps_like.torch.job import runtime

    def known() -> int:
        return len(runtime.current().route._declared)

    right = True
    before = 0
    for number in range(count):
        result = bps.allreduce(torch.ones(1 + number % 40), op=bps.Sum, name="layer.weight")
        right = right and result.shape == (1 + number % 40,) and float(result.sum()) == size * (1 + number % 40)
        if number == count // 2:
            before = known()
    return before, known(), right
