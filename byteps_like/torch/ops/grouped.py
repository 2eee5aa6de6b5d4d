"""Several tensors reduced as one: those of one dtype travel in one buffer, so the group is whole or not there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from byteps_like.errors import BytePSLikeError
from byteps_like.torch.calls.handles import Operation, synchronize, table
from byteps_like.torch.calls.reductions import Reduction, resolve
from byteps_like.torch.compression.casts import is_own
from byteps_like.torch.compression.public import Compression
from byteps_like.torch.compression.rules import check_compression
from byteps_like.torch.device.tensors import check_strided
from byteps_like.torch.job import runtime as _runtime
from byteps_like.torch.ops.differentiable import push_pull
from byteps_like.torch.ops.single import start

Tensors = Sequence[torch.Tensor]


def grouped_allreduce(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    compression: object = Compression.none,
    op: object = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: object = None,
) -> list[torch.Tensor]:
    """Runs `allreduce` on several tensors as one operation per dtype. Differentiable like `push_pull`."""
    if is_own(compression):
        own = check_compression(compression)
        pairs = [own.compress(tensor) for tensor in tensors]
        sent, factors = [tensor for tensor, _ in pairs], (prescale_factor, postscale_factor)
        reduced = grouped_allreduce(sent, average, name, Compression.none, op, *factors, process_set)
        return [own.decompress(result, context) for result, (_, context) in zip(reduced, pairs, strict=True)]

    def reduce(flat: torch.Tensor, full: str | None) -> torch.Tensor:
        return push_pull(
            flat, average, full, compression=compression, op=op, process_set=process_set,
            prescale_factor=prescale_factor, postscale_factor=postscale_factor,
        )  # fmt: skip

    return _Group(tensors, name, resolve(average, op)).each(reduce)


def grouped_allreduce_async(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: object = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: object = None,
) -> int:
    """Starts `grouped_allreduce` and returns one handle, of a list of tensors. The tensors are left as they are."""
    reduction = resolve(average, op, 0, prescale_factor, postscale_factor)
    return _start(_Group(tensors, name, reduction), reduction, process_set, lambda reduced: reduced)


def grouped_allreduce_(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: object = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: object = None,
) -> list[torch.Tensor]:
    """As `grouped_allreduce`, in the memory of the tensors, which are returned. Not differentiable."""
    result: list[torch.Tensor] = synchronize(
        grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor, process_set)
    )
    return result


def grouped_allreduce_async_(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: object = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: object = None,
) -> int:
    """As `grouped_allreduce_async`; the results are written into the tensors when the handle is synchronized."""

    def write(reduced: list[torch.Tensor]) -> list[torch.Tensor]:
        with torch.no_grad():
            for tensor, result in zip(tensors, reduced, strict=True):
                tensor.copy_(result)
        return list(tensors)

    reduction = resolve(average, op, 0, prescale_factor, postscale_factor)
    return _start(_Group(tensors, name, reduction), reduction, process_set, write)


class _Group:
    """Tensors by the buffer in which they travel. Adasum looks at each tensor by itself, so there each has its own."""

    def __init__(self, tensors: Tensors, name: str | None, reduction: Reduction) -> None:
        for tensor in tensors:
            check_strided(tensor, "grouped_allreduce")
        self._tensors = tensors
        self._buffers: dict[str, list[int]] = {}
        places: list[torch.device] = [torch.device("cpu")]
        for number, tensor in enumerate(tensors):
            key = str(number) if reduction.adasum else _key(tensor, places)
            self._buffers.setdefault(key, []).append(number)
        self._name = name

    def flats(self) -> list[tuple[torch.Tensor, str | None]]:
        """The buffers, and the name of each."""
        return [
            (torch.cat([self._tensors[number].reshape(-1) for number in numbers]), self._full(key))
            for key, numbers in self._buffers.items()
        ]

    def _full(self, key: str) -> str | None:
        return None if self._name is None else f"{self._name}.{key}"

    def split(self, reduced: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors again, from reduced buffers."""
        found: dict[int, torch.Tensor] = {}
        for flat, numbers in zip(reduced, self._buffers.values(), strict=True):
            pieces = torch.split(flat, [self._tensors[number].numel() for number in numbers])
            for number, piece in zip(numbers, pieces, strict=True):
                found[number] = piece.view(self._tensors[number].shape)
        return [found[number] for number in range(len(self._tensors))]

    def each(self, reduce: Callable[[torch.Tensor, str | None], torch.Tensor]) -> list[torch.Tensor]:
        """Reduces the buffers one after the other."""
        return self.split([reduce(flat, full) for flat, full in self.flats()])


def _key(tensor: torch.Tensor, places: list[torch.device]) -> str:
    """The same on all ranks, whose devices have numbers of their own: `places` are in the order in which they came."""
    if tensor.device not in places:
        places.append(tensor.device)
    number = places.index(tensor.device)
    return str(tensor.dtype).removeprefix("torch.") + (f".{number}" if number else "")


class _Handles:
    """The handle of several handles. Their results are taken by `results`, which also frees their names."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = numbers
        self._operations = [table.get(number) for number in numbers]

    def done(self) -> bool:
        return all(operation.handle.done() for operation in self._operations)

    def give_up(self, error: BytePSLikeError) -> None:
        """Of each by itself."""

    def wait(self, timeout: float | None = None) -> None:
        """Left to `results`, which has to take every handle from the table, also when one fails."""

    def results(self) -> list[torch.Tensor]:
        reduced, failure = [], None
        for number in self._numbers:
            try:
                reduced.append(synchronize(number))
            except Exception as error:  # noqa: BLE001 - raised again below
                failure = failure or error
        if failure is not None:
            raise failure
        return reduced


def _start(
    group: _Group, reduction: Reduction, process_set: object, result: Callable[[list[torch.Tensor]], Any]
) -> int:
    with torch.no_grad():
        handles = _Handles([start(flat, full, reduction, process_set) for flat, full in group.flats()])
    return table.add(Operation(_runtime.current(), None, handles, lambda: result(group.split(handles.results()))))
