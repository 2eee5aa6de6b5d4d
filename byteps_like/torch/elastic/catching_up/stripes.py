"""A rank's part of some tensors: of their bytes, one behind the other, as many as each other rank's. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import torch

from byteps_like.torch.job.trees import bytes_of

Bytes = npt.NDArray[np.uint8]

_MOST_COPIED = 1 << 20
"""Bytes of a tensor in another order of memory, such as channels_last, that are brought into rows at a time."""


class Stripe:
    """Part `index` of `count` of the bytes of `tensors`, in their order, each row by row; on any device.

    Tensors that are not contiguous can be read, some rows at a time, but what is written to them gets lost.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], index: int, count: int) -> None:
        self._tensors = tensors
        self._ends = list(accumulate(tensor.numel() * tensor.element_size() for tensor in tensors))
        total = self._ends[-1] if self._ends else 0
        self._begin, self._end = total * index // count, total * (index + 1) // count

    @property
    def nbytes(self) -> int:
        """How many they are; the stripes of all ranks together are everything, and none is longer by more than 1."""
        return self._end - self._begin

    def read(self, offset: int, nbytes: int) -> Bytes:
        """A copy of so many bytes from `offset` on."""
        found = np.empty(nbytes, np.uint8)
        at = 0
        whole = torch.from_numpy(found)
        for piece in self._pieces(offset, nbytes):
            whole[at : at + len(piece)].copy_(piece)
            at += len(piece)
        return found

    def write(self, offset: int, data: Bytes) -> None:
        """Puts these bytes there."""
        at = 0
        for piece in self._pieces(offset, len(data)):
            piece.copy_(torch.from_numpy(data[at : at + len(piece)]))
            at += len(piece)

    def _pieces(self, offset: int, nbytes: int) -> Iterator[torch.Tensor]:
        at, end = self._begin + offset, self._begin + offset + nbytes
        place = bisect_right(self._ends, at)
        while at < end:
            tensor, stop = self._tensors[place], min(self._ends[place], end)
            begin = self._ends[place] - tensor.numel() * tensor.element_size()
            yield from _part(tensor, at - begin, stop - begin)
            at, place = stop, place + 1


def _part(tensor: torch.Tensor, begin: int, end: int) -> Iterator[torch.Tensor]:
    """Those of its bytes, row by row, in pieces."""
    if tensor.is_contiguous():
        yield bytes_of(tensor)[begin:end]
        return
    while len(tensor) == 1:
        tensor = tensor[0]
    row = tensor.numel() * tensor.element_size() // len(tensor)
    step = max(_MOST_COPIED // row, 1)
    rows = range(begin // row, -(-end // row))
    for first in rows[::step]:
        some = tensor[first : min(first + step, rows.stop)]
        yield bytes_of(some)[max(begin - first * row, 0) : end - first * row]
