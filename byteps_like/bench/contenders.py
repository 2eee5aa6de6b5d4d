"""Who takes part in a benchmark of collectives. Each turns a case into a function that does it so many times.

A contender that can't do a case raises Unsupported with the reason, on all ranks alike and before it has sent anything.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from typing_extensions import override

from byteps_like.bench.board import Board
from byteps_like.bench.buffers import Buffers
from byteps_like.bench.plan import ELEMENT, BenchPlan, Case

Call = Callable[[], object]
Run = Callable[[int], None]
"""Does the operation so many times; each time is done on this rank before the next begins."""


class Unsupported(Exception):
    """The contender has no such operation."""


class Contender(Protocol):
    """One library, or one door of it."""

    def buffers(self, case: Case) -> Buffers | None:
        """Memory of its own for `case`; None: it takes ordinary memory, which it shares with its rivals."""

    def run(self, buffers: Buffers) -> Run:
        """What does the operation of `buffers`. Raises Unsupported."""


class Plain:
    """A contender whose operation is one call in ordinary memory."""

    def buffers(self, case: Case) -> Buffers | None:
        """See Contender."""
        del case
        return None

    def run(self, buffers: Buffers) -> Run:
        """See Contender."""
        call = self.call(buffers)

        def run(times: int) -> None:
            for _ in range(times):
                call()

        return run

    def call(self, buffers: Buffers) -> Call:
        """What does the operation once. Raises Unsupported."""
        raise NotImplementedError


class TorchGroup(Plain):
    """torch.distributed over any backend. It reduces in place, and does all-to-all out of place."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group

    @override
    def call(self, buffers: Buffers) -> Call:
        group, source, target = self._group, buffers.source, buffers.target
        operation, in_place = buffers.case.operation, buffers.case.in_place
        if operation in ("all_reduce", "reduce") and not in_place:
            raise Unsupported("torch.distributed reduces in place")
        if operation == "all_to_all" and in_place:
            raise Unsupported("torch.distributed has no all_to_all in place")
        calls: dict[str, Call] = {
            "all_reduce": lambda: dist.all_reduce(target, group=group),
            "reduce": lambda: dist.reduce(target, 0, group=group),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(target, source, group=group),
            "all_gather": lambda: dist.all_gather_into_tensor(target, source, group=group),
            "broadcast": lambda: dist.broadcast(target, 0, group=group),
            "all_to_all": lambda: dist.all_to_all_single(target, source, group=group),
            "send_recv": lambda: self._exchange(source, target, buffers),
            "barrier": lambda: dist.barrier(group=group),
        }
        return calls[operation]

    def _exchange(self, source: torch.Tensor, target: torch.Tensor, buffers: Buffers) -> None:
        sending = dist.isend(source, (buffers.rank + 1) % buffers.ranks, group=self._group)
        dist.recv(target, (buffers.rank - 1) % buffers.ranks, group=self._group)
        if sending is not None:
            sending.wait()


class Mpi(Plain):
    """OpenMPI by mpi4py's upper-case methods, which pass addresses."""

    def __init__(self) -> None:
        import mpi4py

        mpi4py.rc.thread_level = "funneled"  # what it is fastest with
        from mpi4py import MPI as module

        self._mpi: Any = module
        self._world: Any = module.COMM_WORLD

    @override
    def call(self, buffers: Buffers) -> Call:
        world, rank, ranks, case = self._world, buffers.rank, buffers.ranks, buffers.case
        if case.operation == "reduce_scatter" and case.in_place:
            raise Unsupported("MPI leaves a rank's part at the beginning of its buffer")
        source, target = buffers.source.numpy(), buffers.target.numpy()
        given: Any = self._mpi.IN_PLACE if case.in_place else source
        calls: dict[str, Call] = {
            "all_reduce": lambda: world.Allreduce(given, target),
            "reduce_scatter": lambda: world.Reduce_scatter_block(given, target),
            "all_gather": lambda: world.Allgather(given, target),
            "broadcast": lambda: world.Bcast(target, 0),
            "all_to_all": lambda: world.Alltoall(given, target),
            "send_recv": lambda: world.Sendrecv(source, (rank + 1) % ranks, 0, target, (rank - 1) % ranks, 0),
            "barrier": world.Barrier,
            "reduce": lambda: world.Reduce(given if rank == 0 else source, target if rank == 0 else None, root=0),
        }
        return calls[case.operation]


class DeepSpeed(Plain):
    """DeepSpeed's all-reduce in memory that ranks of one host share (shm_comm), as its inference on CPUs uses it."""

    def __init__(self, plan: BenchPlan, rank: int) -> None:
        from deepspeed.ops.op_builder.cpu.comm import ShareMemCommBuilder

        # By these it knows that all ranks are on one host, and names its memory.
        os.environ["LOCAL_SIZE"] = str(plan.ranks)
        os.environ["MASTER_ADDR"] = "127.0.0.1"
        os.environ["MASTER_PORT"] = str(zlib.crc32(plan.folder.encode()))
        extension: Any = ShareMemCommBuilder().load(verbose=False)
        self._level: int = extension.vector_kernel_level()
        extension.initialize(plan.ranks, rank)

    @override
    def call(self, buffers: Buffers) -> Call:
        if buffers.case.operation != "all_reduce" or not buffers.case.in_place:
            raise Unsupported("DeepSpeed's shm_comm all-reduces in place and does nothing else")
        if self._level == 0:
            raise Unsupported("DeepSpeed's shm_comm needs AVX2")
        target = buffers.target
        return lambda: torch.ops.deepspeed.inference_all_reduce_(target)


class Direct:
    """The limit within a host: plain kernel loops over memory that all ranks have mapped, with nothing to agree on."""

    def __init__(self, plan: BenchPlan, rank: int, board: Board) -> None:
        self._ranks, self._rank, self._board = plan.ranks, rank, board
        self._yields = plan.ranks > len(os.sched_getaffinity(0))
        most = max(case.elements(plan.ranks) for case in plan.cases())
        path = Path(plan.folder) / "direct"
        with path.open("ab"):
            pass
        os.truncate(path, 2 * plan.ranks * max(most, 1) * ELEMENT)
        memory = np.memmap(path, np.float32, "r+").reshape(2, plan.ranks, -1)
        self._memory: Any = np.asarray(memory)

    def buffers(self, case: Case) -> Buffers:
        """See Contender."""
        return self._of(case, self._rank)

    def run(self, buffers: Buffers) -> Run:
        """See Contender."""
        from byteps_like._core import kernels

        if buffers.case.operation == "all_to_all" and buffers.case.in_place:
            raise Unsupported("in place every part would need a copy first")
        everybody = [self._of(buffers.case, rank) for rank in range(self._ranks)]
        jobs = [
            ([item.numpy() for item in targets], [item.numpy() for item in sources])
            for targets, sources in direct_jobs(everybody, self._rank)
        ]

        def run(times: int) -> None:
            kernels.run_direct(self._board.direct, self._rank, self._ranks, jobs, times, self._yields)

        return run

    def _of(self, case: Case, rank: int) -> Buffers:
        rows = iter(self._memory[:, rank])
        return Buffers.make(case, rank, self._ranks, lambda count: torch.from_numpy(next(rows)[:count]))


Job = tuple[list[torch.Tensor], list[torch.Tensor]]


def direct_jobs(everybody: Sequence[Buffers], rank: int) -> list[Job]:
    """What rank `rank` has to do when it can reach everything: sums of sources into targets, or copies."""
    me = everybody[rank]
    operation = me.case.operation
    part = me.case.elements(len(everybody)) // len(everybody)
    own = slice(rank * part, (rank + 1) * part)
    if operation in ("all_reduce", "reduce", "reduce_scatter"):
        targets = {
            "all_reduce": [item.target[own] for item in everybody],
            "reduce": [everybody[0].target[own]],
            "reduce_scatter": [me.target],
        }
        return [(targets[operation], [item.source[own] for item in everybody])]
    if operation in ("all_gather", "all_to_all"):
        wanted = [item.source[own] if operation == "all_to_all" else item.source for item in everybody]
        places = torch.tensor_split(me.target, len(everybody))
        return [([place], [source]) for place, source in zip(places, wanted, strict=True) if place is not source]
    if operation == "broadcast":
        return [([me.target], [everybody[0].target])] if rank else []
    return [([me.target], [everybody[rank - 1].source])] if operation == "send_recv" else []
