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
from byteps_like.torch import runtime
from byteps_like.worker.api import TensorSpec
from tests.scenarios.models import mlp
from tests.scenarios.optimizers import backward

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
    """What it holds once neither is more than in `most`, or after 5 s: it gives back when it hears of it."""
    end = time.monotonic() + 5.0
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
