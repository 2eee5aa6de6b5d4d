"""Processes forked from one that has imported torch: each costs 20 ms of processor time, where a new one costs 4 s.

The one they come from does nothing but import, so that it has no threads, least of all those of autograd.
"""

from __future__ import annotations

import multiprocessing
from typing import Any

MODULES = [
    "torch",
    "torch._dynamo",  # which every optimizer imports
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.distributed.optim",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "sklearn.datasets",
    "byteps_like.torch",
    "byteps_like.torch.c10d.process_group",
]


def context() -> Any:
    """The context of multiprocessing in which such processes are started."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(MODULES)
    return made
