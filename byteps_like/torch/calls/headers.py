"""What ranks tell each other before data of sizes that only the sender knows: element type, shape, codec and number of
bytes, split sizes."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch

from byteps_like.collectives.api import CallOptions, CollectiveOperation, Group, Traffic
from byteps_like.dtypes import DType
from byteps_like.errors import InvalidArgumentError, MismatchError
from byteps_like.torch.device.tensors import WIRE_DTYPES

_TYPES = tuple(WIRE_DTYPES)
_DIMENSIONS = 13
_WORDS = _DIMENSIONS + 3

Shape = tuple[int, ...]


class Headers:
    """The dtypes and shapes of `tensors` on all ranks of a group, and `splits`, one number per rank, if they are given.

    `codec`: the spec of the codec in which they travel, "" if as they are; `lengths`: in how many bytes.
    On the wire: an all-gather of 128 bytes per rank and tensor, and 8 per split.
    """

    def __init__(
        self,
        lane: Group,
        what: str,
        tensors: list[torch.Tensor],
        splits: list[int] | None = None,
        *,
        codec: str = "",
        lengths: Sequence[int] = (),
        timeout: float | None = None,
    ) -> None:
        self._lane, self._what = lane, what
        self._count = len(tensors)
        mark = zlib.crc32(codec.encode())
        self._codecs = {0: "", mark: f" in {codec}" if codec else ""}
        lengths = lengths or [tensor.nbytes for tensor in tensors]
        words = [word for pair in zip(tensors, lengths, strict=True) for word in _described(*pair, mark, what)]
        words += splits or []
        self._own = torch.tensor(words, dtype=torch.int64, device="cpu")
        self._all = torch.empty(lane.size, len(words), dtype=torch.int64, device="cpu")
        self.operation: CollectiveOperation = lane.all_gather(
            self._own.data_ptr(), self._all.data_ptr(), [len(words)] * lane.size, DType.INT64,
            CallOptions(timeout, traffic=Traffic.CONTROL),
        )  # fmt: skip

    def shapes(self, number: int) -> list[Shape]:
        """The shapes of tensor `number` by rank; only once the operation is done.

        Raises MismatchError, the same on all ranks, if they differ in more than the first dimension.
        """
        rows = self._all[:, number * _WORDS : (number + 1) * _WORDS].tolist()
        shapes = [tuple(row[3 : 3 + row[1]]) for row in rows]
        if len({(row[0], len(shape), shape[1:]) for row, shape in zip(rows, shapes, strict=True)}) > 1:
            raise self._disagree(rows, "dtypes, codecs and all dimensions but the first must be equal")
        return shapes

    def check_equal(self, number: int) -> None:
        """Raises MismatchError, the same on all ranks, if dtypes or shapes of tensor `number` differ at all."""
        rows = self._all[:, number * _WORDS : (number + 1) * _WORDS].tolist()
        if len({tuple(row) for row in rows}) > 1:
            raise self._disagree(rows, "dtypes and shapes must be equal")

    def _disagree(self, rows: list[list[int]], rule: str) -> MismatchError:
        seen = ", ".join(
            f"rank {rank} has {self._kind(row[0], tuple(row[3 : 3 + row[1]]))}"
            for rank, row in zip(self._lane.ranks, rows, strict=True)
        )
        return MismatchError(f"{self._what}: the ranks disagree: {seen}; {rule}", key=self._lane.name)

    def lengths(self, number: int) -> list[int]:
        """In how many bytes tensor `number` travels, by rank; only once the operation is done."""
        found: list[int] = self._all[:, number * _WORDS + 2].tolist()
        return found

    def _kind(self, word: int, shape: Shape) -> str:
        kind = str(_TYPES[word & 0xFF]).removeprefix("torch.")
        return f"{kind} {list(shape)}{self._codecs.get(word >> 8, ' in another codec')}"

    def splits(self) -> list[list[int]]:
        """`splits` of all ranks: [source][destination]."""
        found: list[list[int]] = self._all[:, self._count * _WORDS :].tolist()
        return found


def _described(tensor: torch.Tensor, length: int, mark: int, what: str) -> list[int]:
    if tensor.dtype not in _TYPES:
        raise InvalidArgumentError(f"{what}: tensors of {tensor.dtype} are not supported")
    if not 1 <= tensor.dim() <= _DIMENSIONS:
        raise InvalidArgumentError(
            f"{what} needs tensors of 1 to {_DIMENSIONS} dimensions, not shape {tuple(tensor.shape)}; a scalar can be"
            " passed as tensor.reshape(1)"
        )
    kind = _TYPES.index(tensor.dtype) | mark << 8
    return [kind, tensor.dim(), length, *tensor.shape, *[0] * (_DIMENSIONS - tensor.dim())]
