"""Tensors in memory that the other ranks of this host read and write in place."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist

from byteps_like.errors import NotInitializedError
from byteps_like.torch.device.tensors import tensor_over
from byteps_like.torch.job import runtime as _runtime


def empty_shared(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Returns a tensor of zeros in shared memory, from which collectives on one host need no copies.

    It belongs to the job of `init()`; without one, to torch.distributed's default group, if its backend is "byteps".
    The memory lives as long as the tensor or a view of it. Each rank may create any number of them, independently of
    the others. `shape`: sizes, as for torch.empty. The tensor is on the CPU. Raises NotInitializedError if there is
    neither a job nor such a group.
    """
    count = math.prod(shape)
    room = max(count, 1)
    if _runtime.initialized():
        flat = tensor_over(_runtime.current().worker.empty_shared(room * dtype.itemsize), dtype)
    else:
        flat = _default_group().allocate_tensor(room, dtype=dtype, device=torch.device("cpu"))
    return flat[:count].view(shape)


def _default_group() -> Any:
    if dist.is_available() and dist.is_initialized():
        from byteps_like.torch.c10d.process_group import ProcessGroup  # most users make no process group

        if isinstance(dist.group.WORLD, ProcessGroup):
            return dist.group.WORLD
    raise NotInitializedError('empty_shared needs init(), or torch.distributed.init_process_group("byteps")')
