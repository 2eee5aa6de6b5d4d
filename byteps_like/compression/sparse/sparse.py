"""What the sparse codecs share: bits, selection by magnitude, and sums over the union of what has come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byteps_like.compression.codec import Floats
from byteps_like.errors import CorruptError

WHOLE_PARTITION = 0xFFFFFFFF
"""In place of a count: all elements follow."""

Words = NDArray[np.uint32]


def magnitudes(x: Floats) -> Words:
    """fp32 without their sign bits, as numbers: ordered as the absolute values are, NaN above infinity."""
    return x.view(np.uint32) & np.uint32(0x7FFFFFFF)


def words_of(bits: int) -> int:
    """32-bit words that hold so many bits."""
    return -(-bits // 32)


def to_words(flags: NDArray[np.bool_]) -> Words:
    """A bit per flag, the first in the lowest; spare bits are 0."""
    padded = np.zeros(32 * words_of(flags.size), np.uint8)
    padded[: flags.size] = flags
    return np.packbits(padded, bitorder="little").view(np.uint32)


def to_flags(words: Words, bits: int) -> NDArray[np.bool_]:
    """The first `bits` bits of `words`."""
    return np.unpackbits(words.view(np.uint8), bitorder="little")[:bits].astype(bool)


def largest(keys: NDArray[Any], count: int) -> NDArray[np.int64]:
    """Indices of the `count` largest keys, ascending; of equal keys the first come first."""
    order = np.argsort(-keys.astype(np.int64), kind="stable")
    return np.sort(order[:count])


def checked_indices(name: str, indices: Words, numel: int) -> Words:
    """Raises CorruptError if they don't ascend, or reach beyond the end."""
    wide = indices.astype(np.int64)
    if wide.size and (wide[-1] >= numel or (np.diff(wide) <= 0).any()):
        raise CorruptError(f"{name}: indices that don't ascend, or beyond the end")
    return indices


@dataclass
class UnionSum:
    """What the server of a mergeable codec keeps: fp32 sums, and which elements have come."""

    sums: Floats
    came: NDArray[np.bool_]

    @classmethod
    def empty(cls, numel: int) -> UnionSum:
        """Of nothing."""
        return cls(np.zeros(numel, np.float32), np.zeros(numel, bool))

    def add(self, where: NDArray[np.bool_], values: Floats) -> None:
        """Adds `values` at the elements that `where` has. The first to come is taken as it is: -0 stays -0."""
        dense = np.zeros_like(self.sums)
        dense[where] = values
        self.sums = np.where(where, np.where(self.came, self.sums + dense, dense), self.sums).astype(np.float32)
        self.came = self.came | where
