"""Cuts tensors into partitions and gives each to a slot (a shard of a server), balanced by bytes. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from byteps_like.errors import InvalidArgumentError
from byteps_like.worker.api import Declared, Partition, TensorSpec

ALIGNMENT = 64
"""Partition boundaries are multiples of this: whole cache lines, whole elements."""

SMALLEST_PIECE = 64 << 10
"""A tensor is not cut finer than this only to reach more slots."""

PARTS_PER_TENSOR = 1 << 16
"""Keys are `tensor_id << 16 | part`."""


def cut(nbytes: int, partition_bytes: int, slots: int) -> list[tuple[int, int]]:
    """(offset, nbytes) of each piece, in order, without gaps; none for an empty tensor.

    As few pieces as `partition_bytes` allows, rounded up to a multiple of `slots` while pieces stay at least
    SMALLEST_PIECE, so that a large tensor loads all slots equally. All pieces are equal but the last, shorter one.
    """
    if nbytes == 0:
        return []
    largest = max(partition_bytes // ALIGNMENT, 1) * ALIGNMENT
    count = -(-nbytes // largest)
    rounded = -(-count // slots) * slots
    if nbytes // rounded >= SMALLEST_PIECE:
        count = rounded
    piece = -(-nbytes // (count * ALIGNMENT)) * ALIGNMENT
    return [(offset, min(piece, nbytes - offset)) for offset in range(0, nbytes, piece)]


class Placer:
    """Gives every partition to the slot with the fewest bytes so far; ties alternate between servers.

    So no slot ever holds more than one partition's bytes above another. Deterministic in the order of calls.
    """

    def __init__(self, shards: Sequence[int], partition_bytes: int) -> None:
        """`shards[i]` is the number of shards of server i."""
        self._partition_bytes = partition_bytes
        slots = sorted((shard, server) for server, count in enumerate(shards) for shard in range(count))
        self._loads = [(0, order, server, shard) for order, (shard, server) in enumerate(slots)]

    def place(self, tensor_id: int, spec: TensorSpec) -> Declared:
        """The partitions of `spec` and where they live. Raises InvalidArgumentError without slots or for too many."""
        if not self._loads:
            raise InvalidArgumentError(f"can't place tensor {spec.name!r}: the job has no servers")
        pieces = cut(spec.nbytes, self._partition_bytes, len(self._loads))
        if len(pieces) > PARTS_PER_TENSOR:
            raise InvalidArgumentError(
                f"tensor {spec.name!r} of {spec.nbytes} bytes has {len(pieces)} partitions, more than"
                f" {PARTS_PER_TENSOR}; raise partition_bytes={self._partition_bytes}"
            )
        parts = [self._give(tensor_id << 16 | part, offset, size) for part, (offset, size) in enumerate(pieces)]
        return Declared(spec, tensor_id, tuple(parts))

    def loads(self) -> dict[tuple[int, int], int]:
        """Bytes on each (server, shard)."""
        return {(server, shard): load for load, _, server, shard in self._loads}

    def _give(self, key: int, offset: int, nbytes: int) -> Partition:
        load, order, server, shard = self._loads[0]
        heapq.heapreplace(self._loads, (load + nbytes, order, server, shard))
        return Partition(key, offset, nbytes, server, shard)
