"""Python objects between ranks, pickled. Ranks of one job trust each other; nothing else gets this far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cloudpickle
import torch

from byteps_like.torch import runtime as _runtime
from byteps_like.torch.handles import synchronize
from byteps_like.torch.ops import Reduction, Sum, start
from byteps_like.torch.packed import broadcast_packed
from byteps_like.torch.routes import Scope
from byteps_like.torch.runtime import Runtime


def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    name: str | None = None,  # noqa: ARG001 - Horovod's
    *,
    process_set: object = None,
) -> Any:
    """The `obj` of rank `root_rank`, on all ranks (of `process_set`); the root gets its own object back. Blocks.

    Pickled by cloudpickle, so lambdas and local classes may travel. All ranks make their object calls in one order;
    `name` is Horovod's and ignored.
    """
    runtime = _runtime.current()
    scope = runtime.scope(process_set)
    place = scope.root(root_rank)
    if scope.size == 1:
        return obj
    payload = _pickled(obj) if scope.rank == place else torch.empty(0, dtype=torch.uint8, device="cpu")
    length = _gathered_lengths(scope, payload.numel())[place]
    (received,) = _exchange(runtime, scope, payload, {place: length})
    return obj if scope.rank == place else cloudpickle.loads(received.numpy().tobytes())


def allgather_object(
    obj: Any,
    name: str | None = None,  # noqa: ARG001 - Horovod's
    *,
    process_set: object = None,
) -> list[Any]:
    """The objects of all ranks, in the order of ranks; the own one is not copied. Blocks. See `broadcast_object`."""
    runtime = _runtime.current()
    scope = runtime.scope(process_set)
    if scope.size == 1:
        return [obj]
    payload = _pickled(obj)
    received = _exchange(runtime, scope, payload, dict(enumerate(_gathered_lengths(scope, payload.numel()))))
    own = scope.rank
    return [obj if rank == own else cloudpickle.loads(item.numpy().tobytes()) for rank, item in enumerate(received)]


def _pickled(obj: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(cloudpickle.dumps(obj)), dtype=torch.uint8)


def _gathered_lengths(scope: Scope, own: int) -> Sequence[int]:
    lengths = torch.zeros(scope.size, dtype=torch.int64, device="cpu")
    lengths[scope.rank] = own
    return [int(item) for item in synchronize(start(lengths, "objects.lengths", Reduction(Sum), scope.number))]


def _exchange(runtime: Runtime, scope: Scope, own: torch.Tensor, lengths: dict[int, int]) -> list[torch.Tensor]:
    """The bytes of each place in `lengths`."""
    received = []
    for place, length in lengths.items():
        buffer = own if place == scope.rank else torch.empty(length, dtype=torch.uint8, device="cpu")
        broadcast_packed(runtime, [buffer], scope.ranks[place], scope.number)
        received.append(buffer)
    return received
