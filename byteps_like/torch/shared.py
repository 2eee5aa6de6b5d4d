"""Tensors in memory that the other ranks of this host read and write in place."""

from __future__ import annotations

import math

import torch

from byteps_like.torch import runtime as _runtime
from byteps_like.torch.tensors import tensor_over


def empty_shared(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor of zeros over which collectives need no copy in or out on one host. Any rank may make any number.

    Its memory is this job's (see `init`); without one, that of torch.distributed's default group, if its backend is
    "byteps". It lives as long as the tensor or a view of it. Raises NotInitializedError without either.
    """
    count = math.prod(shape)
    memory = _runtime.current().worker.empty_shared(count * dtype.itemsize)
    return tensor_over(memory, dtype)[:count].view(shape)
