"""Sparse gradients as they are: indices and values of all ranks, one behind the other, instead of all their zeros."""

from __future__ import annotations

from collections.abc import Callable

import torch

from byteps_like.dtypes import Op
from byteps_like.errors import InvalidArgumentError
from byteps_like.torch import runtime as _runtime
from byteps_like.torch.gathering import allgather_async
from byteps_like.torch.handles import synchronize
from byteps_like.torch.ops import Average, resolve_op


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None = None, op: object = Average, process_set: object = None
) -> Callable[[], torch.Tensor]:
    """Starts the sum or average of a sparse COO tensor, whose number of entries may differ per rank.

    Returns a function that blocks for the result: a coalesced sparse tensor. On the wire: two all-gathers, of the
    entries' indices and of their values; cheaper than a dense all-reduce while all ranks together hold fewer entries
    than the tensor has. Raises InvalidArgumentError for other layouts and operations, or as `allgather` does.
    """
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.sparse_coo:
        raise InvalidArgumentError("sparse_allreduce_async needs a sparse COO tensor; use allreduce for dense ones")
    wanted = resolve_op(None, op)
    if wanted not in (Op.SUM, Op.AVERAGE):
        raise InvalidArgumentError(f"sparse tensors can't be reduced with op={wanted.name}; use Sum or Average")
    size = _runtime.current().scope(process_set).size
    entries = tensor.detach().coalesce()
    indices = entries.indices().t().contiguous()
    handles = [
        allgather_async(part, None if name is None else f"{name}.{kind}", process_set)
        for kind, part in (("indices", indices), ("values", entries.values()))
    ]

    def finish() -> torch.Tensor:
        gathered, values = (synchronize(handle) for handle in handles)
        if wanted is Op.AVERAGE:
            values = values / size
        return torch.sparse_coo_tensor(gathered.t(), values, tensor.shape, check_invariants=False).coalesce()

    return finish
