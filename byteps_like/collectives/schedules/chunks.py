"""How a partition is cut into one chunk per rank."""

from __future__ import annotations

from dataclasses import dataclass

_COARSEST = 1 << 15  # elements: the longest block of any codec
_FINEST = 64
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 62) - 1


@dataclass(frozen=True)
class ChunkRange:
    """Elements `begin` to `end` of a partition, which belong to group rank `index`. `key` names its random draws."""

    index: int
    begin: int
    end: int
    key: int

    @property
    def numel(self) -> int:
        """Number of elements, at least 1."""
        return self.end - self.begin

    @property
    def slice(self) -> slice:
        """Of the partition."""
        return slice(self.begin, self.end)


def cut(numel: int, ranks: int, key: int) -> list[ChunkRange]:
    """Chunks as equal as whole blocks allow: blocks are 2^15 elements, or less where there are less than four per rank.

    Ranks for whom nothing is left have no chunk.
    """
    block = _COARSEST
    while block > _FINEST and numel < 4 * block * ranks:
        block //= 2
    length = -(-numel // (block * ranks)) * block
    bounds = [(begin, min(begin + length, numel)) for begin in range(0, numel, length)]
    return [keyed(index, *bound, key) for index, bound in enumerate(bounds)]


def keyed(index: int, begin: int, end: int, key: int) -> ChunkRange:
    """The chunk of rank `index`, whose draws are its own among those of the partition with `key`."""
    return ChunkRange(index, begin, end, (key + (index + 1) * _GOLDEN) & _MASK)
