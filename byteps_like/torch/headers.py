"""What ranks tell each other before data of sizes that only the sender knows: element type, shape, split sizes."""

from __future__ import annotations

import torch

from byteps_like.collectives.api import CallOptions, Group, Operation, Traffic
from byteps_like.dtypes import DType
from byteps_like.errors import InvalidArgumentError, MismatchError
from byteps_like.torch.tensors import WIRE_DTYPES

_TYPES = tuple(WIRE_DTYPES)
_DIMENSIONS = 14
_WORDS = _DIMENSIONS + 2

Shape = tuple[int, ...]


class Headers:
    """The dtypes and shapes of `tensors` on all ranks of a group, and `splits`, one number per rank, if they are given.

    On the wire: an all-gather of 128 bytes per rank and tensor, and 8 per split.
    """

    def __init__(self, lane: Group, what: str, tensors: list[torch.Tensor], splits: list[int] | None = None) -> None:
        self._lane, self._what = lane, what
        self._count = len(tensors)
        words = [word for tensor in tensors for word in _encoded(tensor, what)] + (splits or [])
        self._own = torch.tensor(words, dtype=torch.int64)
        self._all = torch.empty(lane.size, len(words), dtype=torch.int64)
        self.operation: Operation = lane.all_gather(
            self._own.data_ptr(), self._all.data_ptr(), [len(words)] * lane.size, DType.INT64,
            CallOptions(traffic=Traffic.CONTROL),
        )  # fmt: skip

    def shapes(self, number: int) -> list[Shape]:
        """The shapes of tensor `number` by rank; only once the operation is done.

        Raises MismatchError, the same on all ranks, if they differ in more than the first dimension.
        """
        rows = self._all[:, number * _WORDS : (number + 1) * _WORDS].tolist()
        shapes = [tuple(row[2 : 2 + row[1]]) for row in rows]
        if len({(row[0], len(shape), shape[1:]) for row, shape in zip(rows, shapes, strict=True)}) > 1:
            seen = ", ".join(
                f"rank {rank} has {str(_TYPES[row[0]]).removeprefix('torch.')} {list(shape)}"
                for rank, row, shape in zip(self._lane.ranks, rows, shapes, strict=True)
            )
            raise MismatchError(
                f"{self._what}: the ranks disagree: {seen}; dtypes and all dimensions but the first must be equal",
                key=self._lane.name,
            )
        return shapes

    def splits(self) -> list[list[int]]:
        """`splits` of all ranks: [source][destination]."""
        found: list[list[int]] = self._all[:, self._count * _WORDS :].tolist()
        return found


def _encoded(tensor: torch.Tensor, what: str) -> list[int]:
    if tensor.dtype not in _TYPES:
        raise InvalidArgumentError(f"{what}: tensors of {tensor.dtype} can't travel")
    if not 1 <= tensor.dim() <= _DIMENSIONS:
        raise InvalidArgumentError(
            f"{what} needs tensors of 1 to {_DIMENSIONS} dimensions, not shape {tuple(tensor.shape)}; a scalar can be"
            " passed as tensor.reshape(1)"
        )
    return [_TYPES.index(tensor.dtype), tensor.dim(), *tensor.shape, *[0] * (_DIMENSIONS - tensor.dim())]
