"""Random rotations of a partition, block by block: compression/quantised/rotation.h says what they are, and of what."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from byteps_like.compression.codec import Floats
from byteps_like.compression.lanes import lane_sum
from byteps_like.compression.random import random_words

GROUP = 256
"""The smallest block, and what codes are packed by: 32 rows of eight lanes."""

Stream = tuple[int, int]


@dataclass(frozen=True)
class Block:
    """`size` elements of a partition from `begin`, with zeros to `padded`."""

    begin: int
    size: int
    padded: int

    @property
    def elements(self) -> slice:
        """Of the partition."""
        return slice(self.begin, self.begin + self.size)

    @property
    def coordinates(self) -> slice:
        """Of all blocks' coordinates in a row."""
        return slice(self.begin, self.begin + self.padded)


def padded(numel: int) -> int:
    """Coordinates of a partition: a multiple of 256."""
    return -(-numel // GROUP) * GROUP


def blocks(numel: int, most: int) -> Iterator[Block]:
    """The rotation blocks of a partition: powers of two from 256 to `most`, the largest first."""
    begin = 0
    while begin < numel:
        rest = numel - begin
        width = min(max(1 << (rest.bit_length() - 1), GROUP), most)
        yield Block(begin, min(rest, width), width)
        begin += width


def energy(x: Floats) -> float:
    """The sum of squares."""
    return lane_sum(x.astype(np.float64) ** 2)


def normalising_factor(norm: np.float32) -> np.float32:
    """The power of two that brings `norm` into [1, 2), as far as fp32 has it."""
    exponent = (int(norm.view(np.uint32)) >> 23 & 0xFF) - 127
    return np.float32(2.0 ** min(max(-exponent, -126), 126))


def rotate(x: Floats, at: Block, stream: Stream, factor: np.float32) -> Floats:
    """H D (factor x) for the elements of one block: `at.padded` coordinates."""
    flipped = np.zeros(at.padded, np.float32)
    flipped[: at.size] = np.float32(0) + x[at.elements] * (_signs(at, stream) * factor)[: at.size]
    return hadamard(flipped)


def rotate_back(coordinates: Floats, at: Block, stream: Stream, factor: np.float32) -> Floats:
    """factor * D H coordinates: the elements of a block."""
    return (hadamard(coordinates) * (_signs(at, stream) * factor))[: at.size]


def hadamard(x: Floats) -> Floats:
    """The Walsh-Hadamard transform, not normalised, with its additions in the order of the native one."""
    x = x.copy()
    for stride in (8, 16, 32, 1, 2, 4, *(1 << i for i in range(6, x.size.bit_length() - 1))):
        pairs = x.reshape(-1, 2, stride)
        a, b = pairs[:, 0].copy(), pairs[:, 1].copy()
        pairs[:, 0], pairs[:, 1] = a + b, a - b
    return x


def _signs(at: Block, stream: Stream) -> Floats:
    words = random_words(stream, at.begin // 32 + np.arange(at.padded // 32)).reshape(-1, 1, 8)
    bits: NDArray[np.uint32] = words >> np.arange(32, dtype=np.uint32).reshape(1, 32, 1) & np.uint32(1)
    return (np.float32(1) - np.float32(2) * bits.astype(np.float32)).reshape(-1)
