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


class Stripe:
    """Part `index` of `count` of the bytes of `tensors`, in their order, each row by row; on any device.

    Of tensors that are not contiguous it has a copy: it can be read, but what is written to it gets lost.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], index: int, count: int) -> None:
        self._flat = [bytes_of(tensor) for tensor in tensors]
        self._ends = list(accumulate(len(flat) for flat in self._flat))
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
        for piece in self._pieces(offset, nbytes):
            found[at : at + len(piece)] = piece.cpu().numpy()
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
            flat = self._flat[place]
            inside = at - (self._ends[place] - len(flat))
            piece = flat[inside : inside + end - at]
            yield piece
            at, place = at + len(piece), place + 1
