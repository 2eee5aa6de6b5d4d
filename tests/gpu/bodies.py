"""What ranks do in processes of their own: `body(bps, rank, size, device, ...)`."""

from __future__ import annotations

import gc
import itertools
import time
from pathlib import Path
from typing import Any

import torch

from byteps_like.errors import BytePSLikeError
from byteps_like.torch.device import inflight
from tests.scenarios.devices.training import sgd
from tests.scenarios.models import mlp

DEADLINE = 10.0


def train(bps: Any, rank: int, device: torch.device, steps: int, flag: str = "") -> str:
    """So many steps, or, of 0, as many as there can be; the name of the error that ended them. `flag`: of the 6th."""
    model = mlp(torch.float32, (512, 512, 512, 8)).to(device)
    optimizer = bps.DistributedOptimizer(sgd(model), model.named_parameters())
    x = torch.ones(16, 512, device=device)
    try:
        for step in itertools.count() if steps == 0 else range(steps):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            if step == 5 and flag and rank == 0:
                Path(flag).touch()
    except BytePSLikeError as error:
        return type(error).__name__
    return ""


def left(device: torch.device) -> int:
    """Bytes that this process's tensors hold on the device, when all that it can give back is given back."""
    gc.collect()
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize()
    limit = time.monotonic() + DEADLINE
    while inflight._parked and time.monotonic() < limit:  # what was under way when its owner went
        inflight.release()
        time.sleep(0.01)
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated()


def steady(bps: Any, rank: int, size: int, device: str, steps: int = 10) -> tuple[str, int]:
    """The error, and what is left."""
    place = torch.device(device)
    return train(bps, rank, place, steps), left(place)


def until_error(bps: Any, rank: int, size: int, device: str, flag: str) -> tuple[str, int]:
    """The same, of a job in which somebody dies; the job is left before what is left is looked at."""
    place = torch.device(device)
    error = train(bps, rank, place, 0, flag)
    bps.shutdown()
    return error, left(place)
