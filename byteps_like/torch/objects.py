"""Python objects between ranks, pickled. Ranks of one job trust each other; nothing else gets this far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cloudpickle
import torch

from byteps_like.torch import runtime as _runtime
from byteps_like.torch.handles import synchronize
from byteps_like.torch.ops import Reduction, Sum, refuse_process_set, start
from byteps_like.torch.packed import broadcast_packed
from byteps_like.torch.runtime import Runtime


def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    name: str | None = None,  # noqa: ARG001 - Horovod's
    *,
    process_set: object = None,
) -> Any:
    """The `obj` of rank `root_rank`, on all ranks; the root gets its own object back. Blocks.

    Pickled by cloudpickle, so lambdas and local classes may travel. All ranks make their object calls in one order;
    `name` is Horovod's and ignored.
    """
    refuse_process_set(process_set)
    runtime = _runtime.current()
    runtime.check_root(root_rank)
    if runtime.worker.size == 1:
        return obj
    is_root = runtime.worker.rank == root_rank
    payload = _pickled(obj) if is_root else torch.empty(0, dtype=torch.uint8)
    length = _gathered_lengths(payload.numel())[root_rank]
    (received,) = _exchange(runtime, payload, {root_rank: length})
    return obj if is_root else cloudpickle.loads(received.numpy().tobytes())


def allgather_object(
    obj: Any,
    name: str | None = None,  # noqa: ARG001 - Horovod's
    *,
    process_set: object = None,
) -> list[Any]:
    """The objects of all ranks, in the order of ranks; the own one is not copied. Blocks. See `broadcast_object`."""
    refuse_process_set(process_set)
    runtime = _runtime.current()
    if runtime.worker.size == 1:
        return [obj]
    payload = _pickled(obj)
    received = _exchange(runtime, payload, dict(enumerate(_gathered_lengths(payload.numel()))))
    own = runtime.worker.rank
    return [obj if rank == own else cloudpickle.loads(item.numpy().tobytes()) for rank, item in enumerate(received)]


def _pickled(obj: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(cloudpickle.dumps(obj)), dtype=torch.uint8)


def _gathered_lengths(own: int) -> Sequence[int]:
    lengths = torch.zeros(_runtime.size(), dtype=torch.int64)
    lengths[_runtime.rank()] = own
    return [int(item) for item in synchronize(start(lengths, "objects.lengths", Reduction(Sum)))]


def _exchange(runtime: Runtime, own: torch.Tensor, lengths: dict[int, int]) -> list[torch.Tensor]:
    received = []
    for root, length in lengths.items():
        buffer = own if root == runtime.worker.rank else torch.empty(length, dtype=torch.uint8)
        broadcast_packed(runtime, [buffer], root)
        received.append(buffer)
    return received
