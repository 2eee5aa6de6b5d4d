"""Horovod's allgather, alltoall and reducescatter, blocking and not, single and grouped. The blocking ones are
differentiable: a gradient takes the opposite way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from byteps_like.compression.codec import Codec
from byteps_like.dtypes import Op
from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.calls.handles import synchronize
from byteps_like.torch.calls.reductions import Average, Reduction, resolve
from byteps_like.torch.compression.casts import NoneCompressor
from byteps_like.torch.compression.public import Compression
from byteps_like.torch.compression.rules import check_compression, check_gathered
from byteps_like.torch.job import runtime as _runtime
from byteps_like.torch.ops.gather_ops import GatheredRows, shares, start_allgather, start_alltoall, start_reducescatter

Tensors = Sequence[torch.Tensor]


def allgather(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: object = None,
    compression: object = Compression.none,
) -> torch.Tensor:
    """Concatenates the tensors of all ranks along the first dimension, whose size may differ per rank.

    Any dtype. Differentiable: a rank's gradient is the mean over all ranks of the gradients of its rows. On the wire:
    an all-gather of 128 bytes for the shapes, and one of the tensors.

    `compression`: a cast, or a codec of trait OPAQUE, REENCODE or MERGE, in which floating-point numbers travel; the
    same on all ranks, who all get what the payloads say. Gradients go back as they are, of a cast in its type.

    Raises InvalidArgumentError for a scalar, or a codec that is made to be summed; MismatchError if dtypes, codecs or
    other dimensions differ; PeerLostError.
    """
    return grouped_allgather([tensor], name, process_set, compression)[0]


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: object = None) -> int:
    """Starts `allgather` and returns a handle; leave `tensor` alone until it is synchronized. Not differentiable."""
    return start_allgather([tensor], name, process_set, lambda gathered: gathered[0].tensor)


def grouped_allgather(
    tensors: Tensors,
    name: str | None = None,
    process_set: object = None,
    compression: object = Compression.none,
) -> list[torch.Tensor]:
    """Runs `allgather` on several tensors; their shapes are exchanged together."""
    cast, codec = check_gathered(compression)
    call = _Allgather(name, process_set, codec)
    if cast is NoneCompressor:
        return _apply(call, tensors)
    pairs = [cast.compress(tensor) for tensor in tensors]
    gathered = _apply(call, [tensor for tensor, _ in pairs])
    return [cast.decompress(rows, context) for rows, (_, context) in zip(gathered, pairs, strict=True)]


def grouped_allgather_async(tensors: Tensors, name: str | None = None, process_set: object = None) -> int:
    """Starts `grouped_allgather` and returns one handle, of a list of tensors."""
    return start_allgather(tensors, name, process_set, _tensors)


def alltoall(
    tensor: torch.Tensor, splits: object = None, name: str | None = None, process_set: object = None
) -> Any:  # fmt: skip
    """Sends the first `splits[0]` rows to rank 0, the next `splits[1]` to rank 1, ...; returns the rows received.

    `splits` is a sequence or tensor of whole numbers; without it, or if it is empty, rows are split evenly. Rows beyond
    its sum are not sent, and have a gradient of zeros. With `splits` the result is a pair: the rows, and an int32
    tensor, on the device of `splits`, of the number of rows received from each rank. Rows are in the
    order of ranks. Any dtype. Differentiable.
    Raises InvalidArgumentError for splits of more rows than there are, MismatchError if dtypes or other dimensions
    differ.
    """
    operation = _Alltoall(name, process_set, splits)
    (received,) = _apply(operation, [tensor])
    return received if splits is None else (received, _counted(operation.counts, splits))


def alltoall_async(
    tensor: torch.Tensor, splits: object = None, name: str | None = None, process_set: object = None
) -> int:  # fmt: skip
    """Starts `alltoall` and returns a handle of the pair, also without splits."""

    def result(rows: GatheredRows) -> Any:
        return rows.tensor, _counted(rows.counts, splits)

    return start_alltoall(tensor, splits, name, process_set, result)


def _counted(counts: Sequence[int], splits: object) -> torch.Tensor:
    """How many rows came, where `splits` is."""
    device = splits.device if isinstance(splits, torch.Tensor) else "cpu"
    return torch.tensor(counts, dtype=torch.int32, device=device)


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: object = Compression.none,
    op: object = Average,
    process_set: object = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Returns this rank's rows of the reduction of `tensor`, which has the same shape on all ranks.

    Rows are distributed evenly; the first ranks get one more if there is a remainder. Differentiable for Sum and
    Average, as in Horovod: gradients are gathered, and of a Sum multiplied by the number of ranks. On the wire: an
    all-gather of 128 bytes for the shapes, and a reduce-scatter of the tensor.
    Raises InvalidArgumentError for a scalar or Adasum, MismatchError if ranks differ in shape, dtype or operation.
    """
    return grouped_reducescatter(
        [tensor], name, compression, op, process_set, prescale_factor, postscale_factor
    )[0]  # fmt: skip


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: object = Average,
    process_set: object = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Starts `reducescatter` and returns a handle; leave `tensor` alone until it is synchronized."""
    reduction = resolve(None, op, 0, prescale_factor, postscale_factor)
    return start_reducescatter(_dealt([tensor], process_set), reduction, name, process_set, lambda own: own[0])


def grouped_reducescatter(
    tensors: Tensors,
    name: str | None = None,
    compression: object = Compression.none,
    op: object = Average,
    process_set: object = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """`reducescatter` of several tensors."""
    reduction = resolve(None, op, 0, prescale_factor, postscale_factor)
    compressor = check_compression(compression)
    pairs = [compressor.compress(tensor) for tensor in tensors]
    reduced = _apply(_Reducescatter(name, process_set, reduction), [tensor for tensor, _ in pairs])
    return [compressor.decompress(own, context) for own, (_, context) in zip(reduced, pairs, strict=True)]


def grouped_reducescatter_async(
    tensors: Tensors,
    name: str | None = None,
    op: object = Average,
    process_set: object = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Starts `grouped_reducescatter` and returns one handle, of a list of tensors."""
    reduction = resolve(None, op, 0, prescale_factor, postscale_factor)
    return start_reducescatter(_dealt(tensors, process_set), reduction, name, process_set, list)


def _dealt(tensors: Tensors, process_set: object) -> list[GatheredRows]:
    size = _runtime.current().scope(process_set).size
    if not all(isinstance(tensor, torch.Tensor) and tensor.dim() for tensor in tensors):
        raise InvalidArgumentError("reducescatter needs tensors of at least one dimension, whose rows are distributed")
    return [GatheredRows(tensor, shares(len(tensor), size)) for tensor in tensors]


def _tensors(gathered: list[GatheredRows]) -> list[torch.Tensor]:
    return [rows.tensor for rows in gathered]


class _Call:
    """One operation and the way back of its gradients."""

    def __init__(self, name: str | None, process_set: object) -> None:
        self.name, self.process_set = name, process_set

    @property
    def way_back(self) -> str | None:
        return None if self.name is None else f"{self.name}.gradient"

    def run(self, tensors: Tensors) -> list[torch.Tensor]:
        raise NotImplementedError

    def back(self, gradients: Tensors) -> list[torch.Tensor]:
        raise NotImplementedError


def _apply(call: _Call, tensors: Tensors) -> list[torch.Tensor]:
    if torch.is_grad_enabled() and any(isinstance(item, torch.Tensor) and item.requires_grad for item in tensors):
        return list(_Differentiable.apply(call, *tensors))  # type: ignore[no-untyped-call]
    return call.run(tensors)


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.call = call
        return tuple(call.run(tensors))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return (None, *ctx.call.back(gradients))


class _Allgather(_Call):
    def __init__(self, name: str | None, process_set: object, codec: Codec | None) -> None:
        super().__init__(name, process_set)
        self._codec = codec

    def run(self, tensors: Tensors) -> list[torch.Tensor]:
        handle = start_allgather(tensors, self.name, self.process_set, list, self._codec)
        gathered: list[GatheredRows] = synchronize(handle)
        self._counts = [rows.counts for rows in gathered]
        return _tensors(gathered)

    def back(self, gradients: Tensors) -> list[torch.Tensor]:
        parts = [GatheredRows(gradient, counts) for gradient, counts in zip(gradients, self._counts, strict=True)]
        handle = start_reducescatter(parts, Reduction(Op.AVERAGE), self.way_back, self.process_set, list)
        own: list[torch.Tensor] = synchronize(handle)
        return own


class _Alltoall(_Call):
    def __init__(self, name: str | None, process_set: object, splits: object) -> None:
        super().__init__(name, process_set)
        self._splits = splits
        self.counts: tuple[int, ...] = ()
        """Rows that came, by rank."""

    def run(self, tensors: Tensors) -> list[torch.Tensor]:
        handle = start_alltoall(tensors[0], self._splits, self.name, self.process_set, lambda rows: rows)
        rows: GatheredRows = synchronize(handle)
        self.counts, self._rows = rows.counts, len(tensors[0])
        return [rows.tensor]

    def back(self, gradients: Tensors) -> list[torch.Tensor]:
        result: Callable[[GatheredRows], torch.Tensor] = lambda rows: rows.tensor  # noqa: E731
        sent = synchronize(start_alltoall(gradients[0], self.counts, self.way_back, self.process_set, result))
        kept = sent.new_zeros(self._rows - len(sent), *sent.shape[1:])
        return [torch.cat((sent, kept))]


class _Reducescatter(_Call):
    def __init__(self, name: str | None, process_set: object, reduction: Reduction) -> None:
        super().__init__(name, process_set)
        self._reduction = reduction

    def run(self, tensors: Tensors) -> list[torch.Tensor]:
        parts = _dealt(tensors, self.process_set)
        own: list[torch.Tensor] = synchronize(
            start_reducescatter(parts, self._reduction, self.name, self.process_set, list)
        )
        return own

    def back(self, gradients: Tensors) -> list[torch.Tensor]:
        op = self._reduction.op
        if op not in (Op.SUM, Op.AVERAGE):
            raise InvalidArgumentError(f"reducescatter with op={op.name} has no gradient; use Sum or Average")
        size = _runtime.current().scope(self.process_set).size if op is Op.SUM else 1
        factor = self._reduction.prescale * self._reduction.postscale * size
        whole: list[torch.Tensor] = synchronize(start_allgather(gradients, self.way_back, self.process_set, _tensors))
        return [gradient.mul_(factor) for gradient in whole]
