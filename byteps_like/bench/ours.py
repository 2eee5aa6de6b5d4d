"""Our own doors: the groups of `byteps_like.collectives` called with addresses, and the c10d backend over them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from typing_extensions import override

from byteps_like.bench.board import PATIENCE
from byteps_like.bench.buffers import Buffers
from byteps_like.bench.contenders import Call, Contender, Plain, TorchGroup
from byteps_like.bench.plan import ELEMENT, BenchPlan, Case
from byteps_like.collectives.api import CallOptions, Group
from byteps_like.dtypes import DType, Op
from byteps_like.torch.device.tensors import tensor_over
from byteps_like.worker.meeting import MeetingSeat

_TAG = 1
_NOW = CallOptions(waits=True)


def make_native(plan: BenchPlan, rank: int) -> Contender:
    """A world of its own, found through a file. Blocks until all ranks have come."""
    from byteps_like.torch.job.rendezvous import meet

    store = dist.FileStore(str(Path(plan.folder) / "world"), plan.ranks)  # type: ignore[attr-defined]
    return Native(meet(MeetingSeat(store, rank, plan.ranks, PATIENCE)))


def make_c10d() -> Contender:
    """torch.distributed over the backend "byteps"."""
    import byteps_like.torch  # noqa: F401  registers it

    return C10d(dist.new_group(backend="byteps"))


def shared_buffers(case: Case, world: Any) -> Buffers | None:
    """For cases in shared memory, of `world`."""
    if case.memory != "shared":
        return None

    def allocate(count: int) -> torch.Tensor:
        return tensor_over(world.empty_shared(count * ELEMENT), torch.float32)[:count]

    return Buffers.make(case, world.rank, world.size, allocate)


class C10d(TorchGroup):
    """torch.distributed over our backend."""

    @override
    def buffers(self, case: Case) -> Buffers | None:
        group: Any = self._group
        return shared_buffers(case, group.world)


class Native(Plain):
    """The groups as they are: addresses and counts."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self._group: Group = world.group("bench")

    @override
    def buffers(self, case: Case) -> Buffers | None:
        return shared_buffers(case, self._world)

    @override
    def call(self, buffers: Buffers) -> Call:
        group, ranks, kind, op = self._group, buffers.ranks, DType.FLOAT32, Op.SUM
        source, target = buffers.source.data_ptr(), buffers.target.data_ptr()
        count = buffers.case.elements(ranks)
        each = count // ranks
        parts = [each] * ranks
        starts: dict[str, Callable[[], Any]] = {
            "all_reduce": lambda: group.all_reduce(source, target, count, kind, op, _NOW),
            "reduce": lambda: group.reduce(source, target, count, kind, op, 0, _NOW),
            "reduce_scatter": lambda: group.reduce_scatter(source, target, parts, kind, op, _NOW),
            "all_gather": lambda: group.all_gather(source, target, parts, kind, _NOW),
            "broadcast": lambda: group.broadcast(target, count, kind, 0, _NOW),
            "all_to_all": lambda: group.all_to_all(source, target, each, each, kind, _NOW),
            "barrier": lambda: group.barrier(_NOW),
        }
        if buffers.case.operation == "send_recv":
            return self._exchange(source, target, count * ELEMENT)
        start = starts[buffers.case.operation]
        return lambda: start().wait()

    def _exchange(self, source: int, target: int, nbytes: int) -> Call:
        group, after, before = self._group, (self._group.rank + 1) % self._group.size, self._group.rank - 1

        def exchange() -> None:
            receiving = group.receive(target, nbytes, before % group.size, _TAG)
            group.send(source, nbytes, after, _TAG).wait()
            receiving.wait()

        return exchange
