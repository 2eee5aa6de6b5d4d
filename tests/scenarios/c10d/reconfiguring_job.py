"""Three processes form a group, one is killed in the middle of a step, and another takes its place. A script: store,
number of the process, 0 to 3. By torch.distributed where that has `_reconfigure`, else by a group alone."""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import byteps_like.torch as bps
from byteps_like.errors import PeerLostError

TIMEOUT = timedelta(seconds=30)
DIES, COMES = 1, 3
NUMBER = int(sys.argv[2])
store = dist.FileStore(sys.argv[1], 3)
given: dict[str, Any] = {"store": store, "rank": min(NUMBER, 2), "world_size": 3, "timeout": TIMEOUT}
group: Any
if known := hasattr(dist, "_reconfigure"):
    dist.init_process_group("byteps", enable_reconfigure=True, **given)
    group = dist.group.WORLD
else:
    group = bps.create_process_group(enable_reconfigure=True, **given)


def handles(step: str, numbers: list[int]) -> list[str]:
    store.set(f"{step}/{NUMBER}", dist._get_reconfigure_handle() if known else group.get_reconfigure_handle())
    return [store.get(f"{step}/{number}").decode() for number in numbers]


def reconfigure(uuid: int, numbers: list[int]) -> None:
    found = handles(str(uuid), numbers)
    if known:
        dist._reconfigure(uuid, found, timeout=TIMEOUT).wait()
        assert (dist.get_rank(), dist.get_world_size()) == (group.rank(), group.size())
    else:
        group.reconfigure(SimpleNamespace(uuid=uuid, handles=found, timeout=TIMEOUT)).wait()
    assert (group.rank(), group.size()) == (numbers.index(NUMBER), len(numbers))


def step() -> float:
    """Of DDP, where that takes the group; the sum of all numbers."""
    if known:
        model = DistributedDataParallel(torch.nn.Linear(3, 1, bias=False), process_group=group)
        model(torch.full((1, 3), float(NUMBER))).backward()
        return round(float(model.module.weight.grad[0, 0]) * group.size(), 3)
    tensor = torch.full((4,), float(NUMBER))
    group.allreduce([tensor]).wait()
    return float(tensor[0])


if NUMBER != COMES:
    reconfigure(1, [0, 1, 2])
    assert step() == 3, "before"
    if NUMBER == DIES:
        os.kill(os.getpid(), signal.SIGKILL)
    begun = time.monotonic()
    try:
        group.allreduce([torch.ones(1 << 20)]).wait()
    except PeerLostError as error:
        assert f"rank {DIES}" in str(error), error
        found = time.monotonic()
    else:
        raise AssertionError("the dead rank was not missed")
    reconfigure(2, [0, 2])
    assert step() == 2, "without"
    print(f"found after {found - begun:.3f} s, on after {time.monotonic() - begun:.3f} s")
reconfigure(3, [0, 2, 3])
assert step() == 5, "with another"
group.shutdown()
