"""allgather, alltoall and reducescatter over the ranks of a process set: what is started, and what comes of it.

Each name has a lane of its own, so ranks may start differently named operations in different orders. Tensors are left
alone by the operations, and must be by the caller until the handle is synchronized.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from byteps_like.collectives.api import CallOptions, Group, Traffic
from byteps_like.compression.codec import Codec
from byteps_like.dtypes import DType, Op
from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.calls.handles import Operation, enter
from byteps_like.torch.calls.headers import Headers
from byteps_like.torch.calls.reductions import Reduction, scaled_once
from byteps_like.torch.calls.two_steps import All, InFlight, Staged
from byteps_like.torch.device.tensors import check_strided, wire_dtype, wire_op
from byteps_like.torch.job import runtime as _runtime
from byteps_like.torch.job.naming import Call
from byteps_like.torch.job.routes import Scope
from byteps_like.torch.ops.gather_codec import Travelling, travellers
from byteps_like.torch.ops.single import scale_in_place

Launch = Callable[[Group], tuple[InFlight, Callable[[], Any]]]
"""Starts an operation on a lane: what is in flight, and how its result is made."""


@dataclass(frozen=True)
class GatheredRows:
    """A tensor whose rows came from, or went to, several ranks: `counts` of them each."""

    tensor: torch.Tensor
    counts: tuple[int, ...]


def launch(call: Call, process_set: object, begin: Launch) -> int:
    """Starts an operation on its lane and returns its handle."""
    runtime = _runtime.current()
    scope = runtime.scope(process_set)
    if runtime.joiner is not None:
        runtime.joiner.check(call.kind, scope.ranks)
    return enter(call, runtime, scope.prefix, partial(_begin, call, scope, begin))


def _begin(call: Call, scope: Scope, begin: Launch) -> Operation:
    runtime = _runtime.current()
    with runtime.claimed(scope, call) as claim:
        step, finish = begin(scope.lane(claim.name))
        runtime.names.begun(claim, step)
        if runtime.joiner is not None:
            runtime.joiner.watch(claim, step, scope)
    return Operation(runtime, claim, step, finish)


def _called(kind: str, name: str | None) -> str:
    return kind if name is None else f"{kind} {name!r}"


def plain(tensors: Sequence[torch.Tensor], what: str) -> list[torch.Tensor]:
    """`tensors` without history, contiguous, in this host's memory: the host waits for those that are on a device.

    Raises InvalidArgumentError for what can't be sent.
    """
    for tensor in tensors:
        check_strided(tensor, what)
    return [tensor.detach().cpu().contiguous() for tensor in tensors]


def start_allgather(
    tensors: Sequence[torch.Tensor], name: str | None, process_set: object, result: Callable[[list[GatheredRows]], Any],
    codec: Codec | None = None,
) -> int:  # fmt: skip
    """Starts gathering each of `tensors` along its first dimension; the handle yields `result` of what came.

    With a `codec`, a lone_codec, those of floating-point numbers are encoded here, and decoded for `result`.
    """
    own = plain(tensors, "allgather")
    travelling: list[Travelling] = []

    def begin(lane: Group) -> tuple[InFlight, Callable[[], Any]]:
        travelling.extend(travellers(own, codec, lane.rank))
        headers = Headers(
            lane, _called("allgather", name), own, codec="" if codec is None else codec.spec(),
            lengths=[item.payload.nbytes for item in travelling],
        )  # fmt: skip

        def then() -> InFlight:
            steps = []
            for number, item in enumerate(travelling):
                lengths = headers.lengths(number)
                target = item.expect([shape[0] for shape in headers.shapes(number)], lengths)
                steps.append(lane.all_gather(item.payload.data_ptr(), target.data_ptr(), lengths, DType.UINT8))
            return All(steps)

        def finish() -> Any:
            homes = [tensor.device for tensor in tensors]
            return result(
                [GatheredRows(item.read().to(home), item.counts) for item, home in zip(travelling, homes, strict=True)]
            )

        return Staged(headers.operation, then), finish

    return launch(Call("allgather", name, ""), process_set, begin)


def _row_bytes(tensor: torch.Tensor) -> int:
    return math.prod(tensor.shape[1:]) * tensor.element_size()


def start_alltoall(
    tensor: torch.Tensor, splits: object, name: str | None, process_set: object, result: Callable[[GatheredRows], Any]
) -> int:
    """Starts handing `splits[r]` rows of `tensor` to rank r; the handle yields `result` of what came from whom."""
    (own,) = plain([tensor], "alltoall")
    counts = check_splits(own, splits, _runtime.current().scope(process_set))
    landed: list[GatheredRows] = []

    def begin(lane: Group) -> tuple[InFlight, Callable[[], Any]]:
        headers = Headers(lane, _called("alltoall", name), [own], counts)

        def then() -> InFlight:
            headers.shapes(0)
            received = tuple(row[lane.rank] for row in headers.splits())
            landed.append(GatheredRows(own.new_empty((sum(received), *own.shape[1:])), received))
            return _exchange(lane, own, counts, landed[0])

        return Staged(headers.operation, then), lambda: result(
            replace(landed[0], tensor=landed[0].tensor.to(tensor.device))
        )

    return launch(Call("alltoall", name, ""), process_set, begin)


def _exchange(lane: Group, tensor: torch.Tensor, counts: Sequence[int], into: GatheredRows) -> InFlight:
    size = _row_bytes(tensor)
    send, receive = ([count * size for count in item] for item in (counts, into.counts))
    options = CallOptions(traffic=Traffic.ALL_TO_ALL)
    return lane.all_to_all(tensor.data_ptr(), into.tensor.data_ptr(), send, receive, DType.UINT8, options)


def check_splits(tensor: torch.Tensor, splits: object, scope: Scope) -> list[int]:
    """`splits` as numbers; without any, even ones. Raises InvalidArgumentError if `tensor` has fewer rows."""
    rows = len(tensor) if tensor.dim() else 0
    given = torch.as_tensor([] if splits is None else splits, device="cpu")
    if not given.numel():
        if not tensor.dim() or rows % scope.size:
            raise InvalidArgumentError(
                f"alltoall of shape {tuple(tensor.shape)}: the first dimension can't be split evenly over {scope.size}"
                " ranks; give splits="
            )
        return [rows // scope.size] * scope.size
    if given.dim() > 1:
        raise InvalidArgumentError(f"alltoall: splits must be a list of numbers, not of shape {tuple(given.shape)}")
    if given.is_floating_point() or given.is_complex() or given.dtype is torch.bool:
        raise InvalidArgumentError(f"alltoall: splits must be whole numbers, not of {given.dtype}")
    counts = [int(item) for item in given.reshape(-1)]
    if len(counts) != scope.size or min(counts) < 0 or sum(counts) > rows:
        raise InvalidArgumentError(
            f"alltoall: splits={counts} must be {scope.size} numbers, one per rank, that add up to at most the {rows}"
            f" rows of the tensor of shape {tuple(tensor.shape)}"
        )
    return counts


def shares(rows: int, size: int) -> tuple[int, ...]:
    """How many of `rows` each of `size` ranks gets: equally many, the first ranks one more if there is a remainder."""
    return tuple(rows // size + (rank < rows % size) for rank in range(size))


def start_reducescatter(
    parts: Sequence[GatheredRows], reduction: Reduction, name: str | None, process_set: object,
    result: Callable[[list[torch.Tensor]], Any],
) -> int:  # fmt: skip
    """Starts reducing each of `parts`, of which rank r gets `counts[r]` rows; the handle yields `result` of its own."""
    if reduction.adasum:
        raise InvalidArgumentError("reducescatter does not support op=Adasum; use Sum or Average")
    own = plain([part.tensor for part in parts], "reducescatter")
    scope = _runtime.current().scope(process_set)
    ways = [scaled_once(reduction, tensor.dtype, scope) for tensor in own]
    if reduction.prescale != 1.0:
        own = [tensor.clone() for tensor in own]
    for tensor in own:
        wire_dtype(tensor.dtype)
        scale_in_place(tensor, reduction.prescale)
    outputs: list[torch.Tensor] = []

    def begin(lane: Group) -> tuple[InFlight, Callable[[], Any]]:
        headers = Headers(lane, _called("reducescatter", name), own)
        for tensor, part in zip(own, parts, strict=True):
            outputs.append(tensor.new_empty((part.counts[lane.rank], *tensor.shape[1:])))

        def then() -> InFlight:
            for number in range(len(own)):
                headers.check_equal(number)
            pieces = zip(own, outputs, parts, ways, strict=True)
            return All([_scatter(lane, *piece[:2], piece[2].counts, piece[3].op) for piece in pieces])

        return Staged(headers.operation, then), finish

    def finish() -> Any:
        for output, way in zip(outputs, ways, strict=True):
            scale_in_place(output, way.postscale)
        del own[:]  # alive until here: the operation reads it
        return result([output.to(part.tensor.device) for output, part in zip(outputs, parts, strict=True)])

    return launch(Call("reducescatter", name, _meaning(reduction)), process_set, begin)


def _meaning(reduction: Reduction) -> str:
    """What all ranks must mean, beside what Headers compares."""
    scaled = f" scaled by {reduction.prescale:g}, {reduction.postscale:g}"
    return reduction.op.name.lower() + (scaled if (reduction.prescale, reduction.postscale) != (1.0, 1.0) else "")


def _scatter(lane: Group, tensor: torch.Tensor, output: torch.Tensor, rows: Sequence[int], op: Op) -> InFlight:
    counts = [count * math.prod(tensor.shape[1:]) for count in rows]
    kind = wire_op(op, tensor.dtype)
    return lane.reduce_scatter(tensor.data_ptr(), output.data_ptr(), counts, wire_dtype(tensor.dtype), kind)
