"""What ranks do in the fault tests: `body(bps, rank, size, ...)`; each returns what it saw and how long it took."""

from __future__ import annotations

import itertools
import logging
import time
from pathlib import Path
from typing import Any

import torch

from byteps_like.errors import BytePSLikeError
from tests.scenarios.crossing.models import OPTIMIZERS, Run
from tests.scenarios.models import mlp

Seen = tuple[str, str, float]
"""Name of the error class ("" for none), its message, seconds from the start of the failing step."""


def watch(call: Any) -> Seen:
    """What came of a call, and how long it took."""
    start = time.monotonic()
    try:
        call()
    except BytePSLikeError as error:
        return type(error).__name__, str(error), time.monotonic() - start
    return "", "", time.monotonic() - start


def _watch_together(bps: Any, call: Any) -> Seen:
    """Once all ranks are in the job: who is still coming in would be told there."""
    bps.barrier()
    return watch(call)


def other_gradients(bps: Any, rank: int, size: int) -> Seen:
    """Models of other sizes: their gradients have one name."""
    model = torch.nn.Linear(512 if rank == 1 else 256, 1, bias=False)

    def step() -> None:
        parameters = model.named_parameters()
        optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=parameters)
        model(torch.ones(1, model.in_features)).sum().backward()
        optimizer.step()

    return _watch_together(bps, step)


def more_gradients(bps: Any, rank: int, size: int) -> Seen:
    """A model with one parameter more."""
    layers = [torch.nn.Linear(4, 4, bias=False), *([torch.nn.Linear(4, 1, bias=False)] if rank == 1 else [])]
    model = torch.nn.Sequential(*layers)

    def step() -> None:
        parameters = model.named_parameters()
        optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=parameters)
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()

    return _watch_together(bps, step)


def other_order(bps: Any, rank: int, size: int) -> Seen:
    def call() -> None:
        for name in ("first", "second") if rank == 0 else ("second", "first"):
            bps.push_pull(torch.zeros(4), name=name)

    return _watch_together(bps, call)


def never_comes(bps: Any, rank: int, size: int) -> Seen:
    bps.push_pull(torch.zeros(4), name="warm")
    if rank != 1:
        return watch(lambda: bps.push_pull(torch.zeros(4), name="layer.weight"))
    time.sleep(3.5)  # busy elsewhere for longer than the job's deadline
    return watch(lambda: bps.push_pull(torch.zeros(4), name="layer.weight"))


def leaves_early(bps: Any, rank: int, size: int) -> Seen:
    bps.push_pull(torch.zeros(4), name="warm")
    if rank == 1:
        bps.shutdown()
        return "", "", 0.0
    return watch(lambda: bps.push_pull(torch.zeros(4), name="layer.weight"))


def loop_until_error(bps: Any, rank: int, size: int, flag: str) -> Seen:
    """Steps until the job fails; touches `flag` when the first step is through. Seconds: in the failing call."""
    tensor = torch.ones(300_000)
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("byteps_like").addHandler(handler)
    steps = 0
    while True:
        name, text, seconds = watch(lambda: bps.push_pull_inplace(tensor, average=True, name="layer.weight"))
        if name:
            return name, text + "".join(f"\nwarned: {message}" for message in messages), seconds
        steps += 1
        if steps == 5 and rank == 0:
            Path(flag).touch()
        time.sleep(0.002)


def cross_until_error(bps: Any, rank: int, size: int, flag: str, compression: Any = None) -> Seen:
    """Trains with updates that cross the barrier, until the job fails in some forward, backward or step."""
    run = Run(bps, True, OPTIMIZERS["Adam"], mlp(), compression=compression)
    for step in itertools.count():
        seen = watch(lambda step=step: run.train(rank, size, range(step, step + 1)))
        if seen[0]:
            return seen
        if step == 5 and rank == 0:
            Path(flag).touch()
    raise AssertionError


def cross_by_factors_until_error(bps: Any, rank: int, size: int, flag: str) -> Seen:
    """As above, with PowerSGD, whose second factors may be in flight or still to be sent."""
    return cross_until_error(bps, rank, size, flag, {"*weight": "powersgd:rank=1"})


def sums(bps: Any, rank: int, size: int) -> float:
    return float(bps.push_pull(torch.full((10,), float(rank + 1)), average=False, name="after").sum())
