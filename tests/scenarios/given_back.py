"""Bodies that make and drop what a long job makes and drops, and say what is held for it meanwhile."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from byteps_like.dtypes import DType, Op
from byteps_like.torch.device import inflight
from byteps_like.torch.job import runtime
from byteps_like.worker.api import TensorSpec
from tests.scenarios.models import mlp
from tests.scenarios.optimizers.updates import backward

Held = tuple[int, int]
"""Descriptors and mappings of shared memory."""


def held(process: int) -> Held:
    """By a process of this host."""
    names = []
    for file in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            names.append(str(file.readlink()))
    maps = Path(f"/proc/{process}/maps").read_text().splitlines()
    return sum("memfd:byteps_like" in name for name in names), sum("memfd:byteps_like" in line for line in maps)


def settled(process: int, most: Held) -> Held:
    """What it holds once neither is more than in `most`, or after 20 s: it gives back when it hears of it."""
    end = time.monotonic() + 20.0
    while True:
        now = held(process)
        if (now[0] <= most[0] and now[1] <= most[1]) or time.monotonic() > end:
            return now
        time.sleep(0.02)


def watched(bps: Any, server: int, turns: int, turn_of: Callable[[int], None]) -> tuple[Held, Held, Held, Held]:
    """What this process and the server hold after the first turn, and after the last."""
    turn_of(0)
    bps.barrier()
    first = held(os.getpid()), held(server)
    for turn in range(1, turns):
        turn_of(turn)
    bps.barrier()
    last = settled(os.getpid(), first[0]), settled(server, first[1])
    bps.barrier()
    return *first, *last


def buffers(bps: Any, rank: int, size: int, server: int, turns: int) -> tuple[Held, Held, Held, Held]:
    """Shared memory that is reduced once."""
    worker: Any = runtime.current().worker

    def one(turn: int) -> None:
        memory = worker.allocate(1 << 16)
        (declared,) = worker.declare([TensorSpec(f"buffer.{turn}", DType.FLOAT32, (1 << 14,))])
        worker.push_pull(declared, memory.address, Op.SUM).wait()
        worker.retire(declared)

    return watched(bps, server, turns, one)


def optimizers(bps: Any, rank: int, size: int, server: int, turns: int) -> tuple[Held, Held, Held, Held]:
    """Optimizers that make two steps."""

    def one(turn: int) -> None:
        model = mlp()
        optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for step in range(2):
            backward(model, step, rank, size)
            optimizer.step()
        del optimizer, model
        gc.collect()

    return watched(bps, server, turns, one)


Counts = dict[str, int]


def records() -> Counts:
    """What this process holds for names and groups."""
    now: Any = runtime.current()
    worker = getattr(now.worker, "_worker", now.worker)
    base = getattr(worker, "_base", worker)
    engine = getattr(base, "_engine", None)
    return {
        "points": len(now.names._points),
        "passing": len(now.names._passing),
        "declared": len(now.route.names),
        "uses": len(now.joiner._uses),
        "lanes": len(now._world.lanes),
        "known": len(worker._catalogue._known),
        "groups": len(base._communicator._groups),
        "tensors": len(getattr(worker, "_tensors", ())),
        "started": len(getattr(worker, "_started", ())),
        "engine": 0 if engine is None else engine.tensors,
        "descriptors": held(os.getpid())[0],
        "mappings": held(os.getpid())[1],
    }


def counted(bps: Any, turns: int, turn_of: Callable[[int], None], apart: tuple[str, ...] = ()) -> tuple[Counts, Counts]:
    """What is held after the first few turns, and after the last; but for the records named `apart`."""
    for turn in range(4):
        turn_of(turn)
    first = calm(bps)
    for turn in range(4, turns):
        turn_of(turn)
    for what in apart:
        del first[what]
    last = calm(bps, first)
    return first, {what: last[what] for what in first}


def calm(bps: Any, wanted: Counts | None = None) -> Counts:
    """What is held once nothing is in flight, and no more than is `wanted`, or after 10 s: some is given back when
    others say so."""
    end = time.monotonic() + 10.0
    for _ in range(3):
        bps.push_pull(torch.zeros(1), name="calm")
    bps.barrier()
    while True:
        inflight.release()
        now = records()
        more = wanted is not None and any(now[what] > most for what, most in wanted.items())
        if not (inflight._parked or more) or time.monotonic() > end:
            return now
        time.sleep(0.02)


def names(bps: Any, rank: int, size: int, server: int, turns: int) -> tuple[Counts, Counts]:
    """Ever new names."""
    tensor = torch.zeros(64)

    def one(turn: int) -> None:
        total = bps.push_pull(tensor.fill_(turn + rank), name=f"name.{turn}", average=False)
        assert total.eq(size * turn + sum(range(size))).all()

    return counted(bps, turns, one)


def calls(bps: Any, rank: int, size: int, server: int, turns: int) -> tuple[Counts, Counts]:
    """Ever new names of all kinds of calls, begun in another order on each rank."""

    def one(turn: int) -> None:
        own = torch.full((size,), float(rank + turn))
        began = [
            lambda: bps.allgather_async(own[:1], name=f"gathered.{turn}"),
            lambda: bps.broadcast_async(own, turn % size, name=f"sent.{turn}"),
            lambda: bps.alltoall_async(own, name=f"dealt.{turn}"),
            lambda: bps.reducescatter_async(own, name=f"scattered.{turn}", op=bps.Sum),
            lambda: bps.grouped_allreduce_async([own, own.double()], name=f"group.{turn}", op=bps.Sum),
        ]
        handles = {number: began[number]() for number in sorted(range(5), key=lambda number: (number + rank) % 5)}
        gathered, sent, _, scattered, grouped = (bps.synchronize(handles[number]) for number in range(5))
        everybody = float(sum(range(turn, turn + size)))
        assert gathered.tolist() == [float(turn + one) for one in range(size)]
        assert sent.eq(turn + turn % size).all() and scattered.tolist() == [everybody]
        assert all(part.eq(everybody).all() for part in grouped)
        assert (
            bps.push_pull(torch.eye(3).to_sparse(), name=f"rows.{turn}", average=False).to_dense().trace() == 3 * size
        )

    return counted(bps, turns, one)


def names_while_some_have_joined(
    bps: Any, rank: int, size: int, server: int, turns: int
) -> tuple[Counts, Counts]:  # fmt: skip
    """Ever new names, and others; each turn the ranks run out of batches one after the other, and join."""

    def one(turn: int) -> None:
        place = (rank + turn) % size
        for step in range(2 * place + 1):
            there = sum(step < 2 * other + 1 for other in range(size))
            handles = [bps.push_pull_async(torch.ones(8), name=f"{turn}.{step}.{k}", average=False) for k in range(3)]
            handles.append(bps.push_pull_async(torch.ones(8), name=f"kept.{step}", average=False))
            for handle in handles:
                assert bps.synchronize(handle).eq(there).all()
        assert bps.join() == (size - 1 - turn) % size

    return counted(bps, turns, one)


def process_sets(bps: Any, rank: int, size: int, server: int, turns: int) -> tuple[Counts, Counts]:
    """Process sets of which some names are reduced, with and without a name, and that are removed again."""

    def one(turn: int) -> None:
        ranks = bps.add_process_set([0, 1])
        if rank in (0, 1):
            for name in (None, f"one.{turn}", "two", "two"):
                assert bps.push_pull(torch.full((8,), turn), name=name, average=False, process_set=ranks)[0] == 2 * turn
            assert bps.allgather(torch.tensor([rank]), name="three", process_set=ranks).tolist() == [0, 1]
            bps.barrier(process_set=ranks)
        assert bps.remove_process_set(ranks)

    return counted(bps, turns, one)


def arenas_in_flight(bps: Any, rank: int, size: int, server: int, turns: int) -> tuple[Counts, Counts]:
    """Optimizers that are dropped with a round in flight, which lands afterwards. Their names are not looked at, which
    stay: a rank that has joined may take part in rounds that others make by them."""

    def one(turn: int) -> None:
        model = mlp()
        optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        backward(model, 0, rank, size)
        optimizer.step()
        if rank == 0:
            bps.push_pull(torch.zeros(1), name="rank 0 is ahead")
        backward(model, 1, rank, size)
        del optimizer, model
        gc.collect()
        if rank != 0:
            bps.push_pull(torch.zeros(1), name="rank 0 is ahead")

    return counted(bps, turns, one, apart=("declared", "known", "uses", "started", "groups"))
