"""Python objects between ranks, pickled: only what a rank of this epoch has sealed for this very call is unpickled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cloudpickle
import torch

from byteps_like.errors import PeerLostError
from byteps_like.torch.calls.handles import synchronize, table
from byteps_like.torch.calls.reductions import Reduction, Sum
from byteps_like.torch.job import runtime as _runtime
from byteps_like.torch.job.routes import Scope
from byteps_like.torch.job.runtime import Runtime
from byteps_like.torch.job.sealed import MAC_BYTES, Seal
from byteps_like.torch.ops.packed import broadcast_packed
from byteps_like.torch.ops.single import start


def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    name: str | None = None,  # noqa: ARG001 - Horovod's
    process_set: object = None,
) -> Any:
    """Returns the `obj` of rank `root_rank` on all ranks (of `process_set`); the root gets its own object. Blocks.

    Objects are pickled by cloudpickle, so lambdas and local classes are supported. All ranks must make their object
    calls in the same order. `name` is accepted for Horovod and ignored.

    Raises MismatchError on all ranks if they differ in the kind of call or the root;
    CorruptError for bytes that the root hasn't sent in this call.
    """
    scope = _runtime.current().scope(process_set)
    place = scope.root(root_rank)
    if scope.size == 1:
        return obj
    is_root = scope.rank == place
    received = broadcast_bytes(cloudpickle.dumps(obj) if is_root else b"", root_rank, process_set=process_set)
    return obj if is_root else cloudpickle.loads(received)


def allgather_object(
    obj: Any,
    name: str | None = None,  # noqa: ARG001 - Horovod's
    process_set: object = None,
) -> list[Any]:
    """Returns the objects of all ranks by rank; the own one is not copied. Blocks. See `broadcast_object`."""
    scope = _runtime.current().scope(process_set)
    if scope.size == 1:
        return [obj]
    received = allgather_bytes(cloudpickle.dumps(obj), process_set=process_set)
    return [obj if rank == scope.rank else cloudpickle.loads(data) for rank, data in enumerate(received)]


def broadcast_bytes(
    data: bytes, root_rank: int, *, process_set: object = None, what: str = "broadcast_object"
) -> bytes:
    """The `data` of rank `root_rank`, on all ranks, checked, for the user's call `what`. Blocks. Raises as
    `broadcast_object` does."""
    runtime = _runtime.current()
    scope = runtime.scope(process_set)
    place = scope.root(root_rank)
    is_root = scope.rank == place
    lengths, call = _agreed(scope, len(data) if is_root else None, f"{what} from rank {root_rank}")
    _check_alive(scope, {place: lengths[place]}, "broadcast_object")
    seal = _seal(runtime, scope, "broadcast_object", call)
    sealed = _as_tensor(seal.close(place, data) if is_root else b"")
    (received,) = _exchange(runtime, scope, sealed, {place: lengths[place]})
    return data if is_root else seal.open(place, received.numpy().tobytes())


def allgather_bytes(data: bytes, *, process_set: object = None, what: str = "allgather_object") -> list[bytes]:
    """The `data` of all ranks, in their order, checked, for the user's call `what`. Blocks. Raises as
    `broadcast_object` does."""
    runtime = _runtime.current()
    scope = runtime.scope(process_set)
    lengths, call = _agreed(scope, len(data), what)
    _check_alive(scope, dict(enumerate(lengths)), "allgather_object")
    seal = _seal(runtime, scope, "allgather_object", call)
    sealed = _as_tensor(seal.close(scope.rank, data))
    received = _exchange(runtime, scope, sealed, dict(enumerate(lengths)))
    own = scope.rank
    return [data if rank == own else seal.open(rank, item.numpy().tobytes()) for rank, item in enumerate(received)]


def _seal(runtime: Runtime, scope: Scope, kind: str, call: int) -> Seal:
    return Seal(runtime.worker.seal_key, kind, scope.number, call)


def _as_tensor(data: bytes) -> torch.Tensor:
    return (
        torch.frombuffer(bytearray(data), dtype=torch.uint8)
        if data
        else torch.empty(0, dtype=torch.uint8, device="cpu")
    )


def _agreed(scope: Scope, nbytes: int | None, purpose: str) -> tuple[Sequence[int], int]:
    """How many bytes each rank sends, sealed, this one `nbytes` before, if any; and the number of this exchange."""
    lengths = torch.zeros(scope.size, dtype=torch.int64, device="cpu")
    lengths[scope.rank] = 0 if nbytes is None else nbytes + MAC_BYTES
    handle = start(lengths, "objects.lengths", Reduction(Sum, purpose=purpose), scope.number)
    claim = table.get(handle).claim
    assert claim is not None
    return [int(item) for item in synchronize(handle)], claim.use


def _check_alive(scope: Scope, lengths: dict[int, int], operation: str) -> None:
    """Whoever sends has said how much: servers finish that without a rank that has died, and all find it missing."""
    gone = [scope.ranks[place] for place, length in lengths.items() if length == 0]
    if gone:
        text = f"rank {', '.join(map(str, gone))} has died: nothing came of what it was to send"
        raise PeerLostError(text, peer=f"worker {gone[0]}", operation=operation)


def _exchange(runtime: Runtime, scope: Scope, own: torch.Tensor, lengths: dict[int, int]) -> list[torch.Tensor]:
    """The bytes of each place in `lengths`."""
    received = []
    for place, length in lengths.items():
        buffer = own if place == scope.rank else torch.empty(length, dtype=torch.uint8, device="cpu")
        broadcast_packed(runtime, [buffer], scope.ranks[place], scope.number)
        received.append(buffer)
    return received
