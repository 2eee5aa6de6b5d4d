"""Sums of sparse tensors: entries travel instead of all their zeros."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from byteps_like.dtypes import Op
from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.calls.handles import Operation, enter, synchronize
from byteps_like.torch.calls.reductions import Average, Reduction, resolve_op
from byteps_like.torch.device.tensors import spec_of, wire_op
from byteps_like.torch.job import runtime as _runtime
from byteps_like.torch.job.naming import Call, Claim
from byteps_like.torch.job.routes import Request, Scope
from byteps_like.torch.sparse.choice import Seen, SparseMethod, choose, codec_for
from byteps_like.torch.sparse.exchange import ExchangeLanes, SparseExchange
from byteps_like.torch.sparse.rows import SUMMED, Form, Rows
from byteps_like.torch.sparse.shadow import DenseShadow, ShadowMeans
from byteps_like.worker.api import Handle

KIND = "sparse_push_pull"
"""First part of the operations' names."""

Started = tuple[Handle, Callable[[], tuple[Rows, int]]]
"""What is in flight; and, once it has landed, the sum and how many entries all ranks had."""


@dataclass
class SparseHistory:
    """Those that a runtime has made, by name. `seen`: the last one; `twins`: what goes through servers, while no round
    of it is in flight."""

    seen: dict[str, Seen] = field(default_factory=dict)
    twins: dict[str, DenseShadow] = field(default_factory=dict)


@dataclass(frozen=True)
class _Sum:
    """One that is to be started. `seen`: the last one of its name."""

    rows: Rows
    claim: Claim
    reduction: Reduction
    scope: Scope
    seen: Seen | None
    way: SparseMethod
    partition_bytes: int

    @property
    def request(self) -> Request:
        return Request(priority=self.reduction.priority or None, claim=self.claim)


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None = None, op: object = Average, process_set: object = None
) -> Callable[[], torch.Tensor]:
    """Starts the sum or average of a sparse COO tensor, whose number of entries may differ per rank.

    Returns a function that blocks for the result: a coalesced sparse tensor. `push_pull` of a sparse tensor is the
    same. Raises InvalidArgumentError for other layouts, types and operations, MismatchError, PeerLostError.
    """
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.sparse_coo:
        raise InvalidArgumentError("sparse_allreduce_async needs a sparse COO tensor; use allreduce for dense ones")
    handle = start_sparse(tensor, name, Reduction(resolve_op(None, op)), process_set)
    return lambda: synchronize(handle)


def start_sparse(
    tensor: torch.Tensor,
    name: str | None,
    reduction: Reduction,
    process_set: object = None,
    *,
    partition_bytes: int = 0,
) -> int:
    """Starts the sum or average of a sparse tensor and returns a handle of the coalesced result.

    Each round of a name goes the way that would have been the soonest for the one before (sparse_choice); the first
    one by two hops: each entry is sent to one rank, which sums it, and the sums to all. On the wire per rank, of n,
    that has the share a of all entries, where the union of all ranks' is u: (n - 1)/n (a + u) of the tensor out and in,
    plus 4 bytes per entry and two all-gathers of some 100 bytes. Among two ranks the first round is gathered. Through
    servers a goes out and u comes in, plus a bit per row, in partitions that have `partition_bytes` when dense; 0: as
    many as the job's. One that is on a device is copied to the host, which waits for it, and its sum back.
    """
    runtime = _runtime.current()
    scope = runtime.scope(process_set)
    home = tensor.device
    rows = _checked(tensor.cpu(), reduction).scaled(reduction.prescale)
    call = Call(KIND, name, _signature(rows, reduction))

    def begin() -> Operation:
        with runtime.claimed(scope, call) as claim:
            full = claim.stable
            seen, generation = _seen(full, rows.form), runtime.generation
            way = _way(rows, seen, scope)
            if way is not SparseMethod.SERVERS:
                runtime.of(SparseHistory).twins.pop(full, None)
            start = {SparseMethod.DENSE: _start_dense, SparseMethod.SERVERS: _start_servers}.get(way, _start_exchange)
            step, finish = start(_Sum(rows, claim, reduction, scope, seen, way, partition_bytes))
            runtime.names.begun(claim, step)

        def result() -> torch.Tensor:
            total, entries = finish()
            runtime.of(SparseHistory).seen[full] = Seen(entries, total.count, way, generation, rows.form)
            return total.scaled(reduction.postscale).tensor().to(home)

        return Operation(runtime, claim, step, result)

    # Here: what was seen of the last sum is noted when this thread synchronizes it, and must be the same on all ranks.
    return enter(call, runtime, scope.prefix, begin, here=True)


def is_dense(name: str, process_set: object = None) -> bool:
    """Whether the last sum of that name went as a dense one."""
    seen = _seen(f"{_runtime.current().scope(process_set).prefix}{KIND}.{name}")
    return seen is not None and seen.way is SparseMethod.DENSE


def goes_dense(tensor: torch.Tensor, name: str, process_set: object = None) -> bool:
    """Whether the next sum of that name, of sparse tensors like this one on the host, goes as a dense one. The same on
    all ranks that have waited for the last one."""
    scope = _runtime.current().scope(process_set)
    rows = Rows.of(tensor)
    return _way(rows, _seen(f"{scope.prefix}{KIND}.{name}", rows.form), scope) is SparseMethod.DENSE


def forget(name: str, process_set: object = None) -> None:
    """The next sum of that name goes as the first one did. On all ranks alike."""
    runtime = _runtime.current()
    runtime.of(SparseHistory).seen.pop(f"{runtime.scope(process_set).prefix}{KIND}.{name}", None)


def _seen(full: str, form: Form | None = None) -> Seen | None:
    """The last sum of that name, if it was of this `form`.

    None after all ranks have joined: who did so first has not seen the others' last.
    """
    runtime = _runtime.current()
    seen = runtime.of(SparseHistory).seen.get(full)
    if seen is None or seen.generation != runtime.generation:
        return None
    return seen if form in (None, seen.form) else None


def _way(rows: Rows, seen: Seen | None, scope: Scope) -> SparseMethod:
    return choose(rows, scope.size, seen, None if scope.number else _runtime.current().cards)


def _start_exchange(wanted: _Sum) -> Started:
    runtime, scope = _runtime.current(), wanted.scope
    if runtime.joiner is not None:
        runtime.joiner.check("push_pull of a sparse tensor", scope.ranks)
    lane = scope.lane(wanted.claim.name)
    exchange = SparseExchange(
        wanted.rows, wanted.reduction.op, ExchangeLanes(lane, lane), wanted.way is SparseMethod.GATHERED
    )
    step = exchange.start()
    if runtime.joiner is not None:
        runtime.joiner.watch(wanted.claim, step, scope)
    return step, exchange.result


def _start_servers(wanted: _Sum) -> Started:
    runtime = _runtime.current()
    rows, scope, twins = wanted.rows, wanted.scope, runtime.of(SparseHistory).twins
    assert wanted.seen is not None
    means = ShadowMeans(wanted.claim.name, codec_for(rows, wanted.seen), wanted.partition_bytes)
    twin: DenseShadow | None = twins.pop(wanted.claim.stable, None)  # held again when all is well
    if twin is None or not twin.serves(rows, means):
        twin = DenseShadow(rows, means, scope.route)
    # Where ranks may have died only servers know how many are in the sum of a partition.
    averages = runtime.config.elastic and wanted.reduction.op is Op.AVERAGE
    held, handle = twin, twin.start(rows, wanted.request, Op.AVERAGE if averages else Op.SUM)

    def finish() -> tuple[Rows, int]:
        total, entries = held.finish(scope.size if averages else 1)
        twins[wanted.claim.stable] = held
        return total if averages else total.divided(wanted.reduction.op, scope.size), entries

    return handle, finish


def _start_dense(wanted: _Sum) -> Started:
    rows, scope = wanted.rows, wanted.scope
    dense = rows.dense()
    (declared,) = scope.route.declare([spec_of(f"{wanted.claim.name}.dense", dense)])
    op = wire_op(wanted.reduction.op, dense.dtype)
    handle = scope.route.push_pull(declared, dense.data_ptr(), op, wanted.request)

    def finish() -> tuple[Rows, int]:
        total = Rows.of_dense(dense, rows.sparse_dim)
        return total, total.count * scope.size

    return handle, finish


def _checked(tensor: torch.Tensor, reduction: Reduction) -> Rows:
    if tensor.dtype not in SUMMED:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in SUMMED)
        raise InvalidArgumentError(f"sparse tensors of {tensor.dtype} can't be summed; supported are {known}")
    if reduction.adasum or reduction.op not in (Op.SUM, Op.AVERAGE):
        named = "Adasum" if reduction.adasum else reduction.op.name
        raise InvalidArgumentError(f"sparse tensors can't be reduced with op={named}; use Sum or Average")
    if tensor.requires_grad and torch.is_grad_enabled():
        raise InvalidArgumentError("push_pull of a sparse tensor has no gradient; pass tensor.detach()")
    return Rows.of(tensor.detach())


def _signature(rows: Rows, reduction: Reduction) -> str:
    shape = "x".join(map(str, rows.shape))
    return f"{reduction.op.name}.{str(rows.values.dtype).removeprefix('torch.')}.{shape}.{rows.sparse_dim}"
