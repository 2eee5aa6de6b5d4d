"""Rank 0 ends while callbacks of its futures are at work and rank 1 still calls it. A script: store, rank."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist

import byteps_like.torch
from byteps_like.errors import BytePSLikeError


def again(future: Any) -> Any:
    return group.allreduce(future.value()).get_future().wait()


assert byteps_like.torch
dist.init_process_group("byteps", init_method=f"file://{sys.argv[1]}", rank=int(sys.argv[2]), world_size=2)
group: Any = dist.group.WORLD
with suppress(BytePSLikeError):
    outcome = group.allreduce([torch.ones(3)]).get_future().then(again)
    if group.rank() == 0:
        sys.exit(3)
    outcome.wait()
