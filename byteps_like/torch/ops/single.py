"""push_pull and broadcast of single tensors, under BytePS's and Horovod's argument names."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from typing import NamedTuple

import torch

from byteps_like.dtypes import Op
from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.calls.handles import Operation, enter, then
from byteps_like.torch.calls.reductions import Reduction, resolve, scaled_once, scales_average
from byteps_like.torch.device import devices
from byteps_like.torch.device.tensors import check_in_place, check_strided, mark_changed, wire_dtype, wire_op
from byteps_like.torch.job import runtime as _runtime
from byteps_like.torch.job.naming import Call, Claim
from byteps_like.torch.job.routes import Request, Scope
from byteps_like.torch.job.runtime import Runtime
from byteps_like.torch.ops import adasum
from byteps_like.torch.sparse.sums import start_sparse
from byteps_like.worker.api import Handle, TensorSpec


def start(tensor: torch.Tensor, name: str | None, reduction: Reduction, process_set: object = None) -> int:
    """Starts `reduction` in the memory of `tensor`; the caller leaves it alone until the handle is synchronized."""
    runtime = _runtime.current()
    scope = runtime.scope(process_set)
    check_in_place(tensor, reduction.kind)
    if runtime.config.elastic and not scope.number and scales_average(reduction, tensor.dtype):
        return _start_wide(tensor, name, reduction)
    reduction = scaled_once(reduction, tensor.dtype, scope)
    if runtime.joiner is not None and _apart(reduction, scope):
        runtime.joiner.check("op=Adasum" if reduction.adasum else reduction.kind, scope.ranks)
    planned = _planned(name, reduction, tensor.dtype, tensor.shape)
    begin = partial(_begin, runtime, planned, tensor, scope)
    on_device = devices.of(tensor) is not None  # whose streams are this thread's
    return enter(planned.call, runtime, scope.prefix, begin, here=on_device)


def _start_wide(tensor: torch.Tensor, name: str | None, reduction: Reduction) -> int:
    """An average of whole numbers, as one of float64: only servers know how many ranks are in it, when some have died.

    On the wire: 8 bytes per element.
    """
    scale_in_place(tensor, reduction.prescale)
    numbers = f"{str(tensor.dtype).removeprefix('torch.')} numbers"
    handle = start(tensor.double(), name, replace(reduction, prescale=1.0, purpose=numbers))
    return then(handle, tensor.copy_)


def _begin(runtime: Runtime, planned: _Planned, tensor: torch.Tensor, scope: Scope) -> Operation:
    call, reduction, _ = planned
    with runtime.claimed(scope, call) as claim:
        begin = _start_adasum if reduction.adasum else _start_push_pull
        runtime.behind.catch_up(claim.stable)
        handle = runtime.behind.follow(claim.stable, begin(runtime, tensor, claim, planned, scope))
        runtime.names.begun(claim, handle)
        if runtime.joiner is not None and _apart(reduction, scope):
            runtime.joiner.watch(claim, handle, scope)

    def finish() -> torch.Tensor:
        mark_changed(tensor)
        scale_in_place(tensor, reduction.postscale)
        return tensor

    return Operation(runtime, claim, handle, finish)


def _apart(reduction: Reduction, scope: Scope) -> bool:
    """Whether ranks that have joined take no part in it."""
    return reduction.adasum or bool(scope.number)


class _Planned(NamedTuple):
    call: Call
    reduction: Reduction
    op: Op


# Kept, since programs make the same calls in every step: as many as there are tensors in a large model.
@lru_cache(maxsize=1 << 14)
def _planned(name: str | None, reduction: Reduction, dtype: torch.dtype, shape: torch.Size) -> _Planned:
    call = Call(reduction.kind, name, _meaning(reduction, dtype, shape))
    return _Planned(call, reduction, wire_op(reduction.op, dtype))


@lru_cache(maxsize=1 << 14)
def _spec(name: str, dtype: torch.dtype, shape: torch.Size, priority: int, codec: str) -> TensorSpec:
    return TensorSpec(name, wire_dtype(dtype), tuple(shape), priority, codec=codec, says_all=True)


def _meaning(reduction: Reduction, dtype: torch.dtype, shape: torch.Size) -> str:
    """What all ranks must mean."""
    what = f"{str(dtype).removeprefix('torch.')}{list(shape)}"
    if reduction.op is Op.BROADCAST:
        return f"{what} from rank {reduction.root}"
    codec = f" by {reduction.codec}" if reduction.codec else ""
    factors = (("prescale_factor", reduction.prescale), ("postscale_factor", reduction.postscale))
    scaled = "".join(f" {name}={factor:g}" for name, factor in factors if factor != 1.0)
    purpose = f" for {reduction.purpose}" if reduction.purpose else ""
    return f"{'adasum' if reduction.adasum else reduction.op.name.lower()} of {what}{codec}{scaled}{purpose}"


def _start_push_pull(runtime: Runtime, tensor: torch.Tensor, claim: Claim, planned: _Planned, scope: Scope) -> Handle:
    reduction, route = planned.reduction, scope.route
    root = scope.root(reduction.root) if planned.op is Op.BROADCAST else 0
    route.carries(devices.of(tensor))
    priority = runtime.priorities.get(claim.stable, 0)
    declared = route.declare_one(_spec(claim.name, tensor.dtype, tensor.shape, priority, reduction.codec))
    scale_in_place(tensor, reduction.prescale)
    address, place = runtime.place(tensor)
    return route.push_pull(declared, address, planned.op, Request(root, None, reduction.priority or None, place, claim))


def _start_adasum(runtime: Runtime, tensor: torch.Tensor, claim: Claim, planned: _Planned, scope: Scope) -> Handle:
    adasum.check_ranks(tensor, scope.size)
    scale_in_place(tensor, planned.reduction.prescale)
    _, place = runtime.place(tensor)
    if place is None:
        return adasum.begin(scope.lane(claim.name), tensor)
    copy = (place.host, place.data)
    return place.stage.start([copy], [copy[::-1]], partial(adasum.begin, scope.lane(claim.name), place.host))


def scale_in_place(tensor: torch.Tensor, factor: float) -> None:
    """Multiplies `tensor`: integers in float64, rounded towards zero, as in Horovod."""
    if factor == 1.0:
        return
    with torch.no_grad():
        if tensor.is_floating_point() or tensor.is_complex():
            tensor.mul_(factor)
        else:
            tensor.copy_(tensor.double().mul_(factor))


def copied(tensor: torch.Tensor, what: str) -> torch.Tensor:
    """A contiguous copy without autograd history, for operations that leave their input as it is."""
    check_strided(tensor, what)
    wire_dtype(tensor.dtype)
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def push_pull_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    version: int = 0,  # noqa: ARG001 - BytePS's
    priority: int = 0,
    *,
    op: object = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: object = None,
) -> int:
    """Starts the reduction of a copy of `tensor` over all ranks and returns a handle for `poll` and `synchronize`.

    The arguments are those of `push_pull`; the result has no autograd history. Blocks for the one round trip in
    which a new name is agreed on, else not at all. Raises as `push_pull` does, or later from `synchronize`.
    """
    reduction = resolve(average, op, priority, prescale_factor, postscale_factor)
    return start_copied(tensor, name, reduction, process_set)


def start_copied(tensor: torch.Tensor, name: str | None, reduction: Reduction, process_set: object) -> int:
    """Starts `reduction` of a copy of `tensor`, which may be sparse, and returns its handle."""
    if isinstance(tensor, torch.Tensor) and tensor.layout is torch.sparse_coo and reduction.op is not Op.BROADCAST:
        return start_sparse(tensor, name, reduction, process_set)
    return start(copied(tensor, reduction.kind), name, reduction, process_set)


def push_pull_async_inplace(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    version: int = 0,  # noqa: ARG001 - BytePS's
    priority: int = 0,
    *,
    op: object = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: object = None,
) -> int:
    """Like `push_pull_async`, in place: don't use `tensor` until `synchronize` has returned it.

    Raises InvalidArgumentError if `tensor` is not contiguous.
    """
    return start(tensor, name, resolve(average, op, priority, prescale_factor, postscale_factor), process_set)


def broadcast_async(tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: object = None) -> int:
    """Starts to broadcast a copy of the `tensor` of `root_rank` to all ranks and returns a handle."""
    return start(copied(tensor, "broadcast"), name, Reduction(Op.BROADCAST, root=root_rank), process_set)


def broadcast_async_(tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: object = None) -> int:
    """As `broadcast_async`, in the memory of `tensor`, which must be contiguous."""
    return start(tensor, name, Reduction(Op.BROADCAST, root=root_rank), process_set)


def declare(name: str, tensor: torch.Tensor | None = None, *, priority: int = 0) -> None:
    """Sets the priority of `name` before its first push_pull. Sends nothing.

    BytePS requires the same order of `declare` calls on all ranks; here calls match by name, so any order will do, and
    the shape and dtype of a name may change between uses. `tensor`, if given, is checked.
    """
    runtime = _runtime.current()
    if not isinstance(name, str) or not name:
        raise InvalidArgumentError(f"declare needs a name, not {name!r}")
    if tensor is not None:
        check_strided(tensor, "declare")
        wire_dtype(tensor.dtype)
    runtime.priorities[f"push_pull.{name}"] = priority
