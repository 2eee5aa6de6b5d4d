"""Reduce-scatter with a codec: the first hop of the all-reduce in `coded`, whose sums stay with the ranks they are for.

Every rank encodes each part and sends it to the rank that it belongs to, which sums what comes. Nothing is encoded a
second time: where a codec's sums are fp32, a value is encoded once for any number of ranks (qgZ of ZeRO++, Wang et al.,
2023, without its hop within hosts). On the wire per rank, of n: (n - 1)/n of the payload out and in; before it the
prelude, all-reduced, and where sizes vary, these.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Sequence
from itertools import accumulate, chain

import numpy as np

from byteps_like.collectives.api import DEFAULT, Addresses, CallOptions, CollectiveOperation, Group
from byteps_like.collectives.coded import Bytes, CodedPartition, OwnersPartition, Steps, grain
from byteps_like.collectives.operation import ENDED
from byteps_like.collectives.planning.stepper import Stepper
from byteps_like.collectives.schedules.chunks import ChunkRange, keyed
from byteps_like.compression.codec import Floats, Trait
from byteps_like.compression.feedback import Compensation
from byteps_like.compression.registry import Coding
from byteps_like.dtypes import DType, Op


class ScatteredSum(CodedPartition):
    """Of a DENSE codec: its payloads, of equal lengths on all ranks, add up in a plain reduce-scatter."""

    def __init__(self, group: Group, coding: Coding, chunks: Sequence[ChunkRange]) -> None:
        super().__init__(group, coding, chunks)
        self._variable = coding.variable

    def _reduce(self, sizes: list[int], agreed: list[Bytes], x: Floats, op: Op, options: CallOptions) -> Steps:
        dtype, size, rank = DType(self._largest["dense"]), self._group.size, self._group.rank
        slots = [self._payloads.ctypes.data + one * self._slot for one in range(size)]
        counts = [self._slot // dtype.itemsize] * size
        if self._variable:
            nbytes = {chunk.index: grain(length, self._slot) for chunk, length in zip(self._chunks, sizes, strict=True)}
            counts = [nbytes.get(one, 0) // dtype.itemsize for one in range(size)]
        source: Addresses = slots if self._variable else slots[0]
        reduction = op if dtype.is_float else Op.SUM
        yield self._group.reduce_scatter(source, slots[rank], counts, dtype, reduction, options)
        factor = 1.0 / size if op is Op.AVERAGE and not dtype.is_float else 1.0
        for chunk, length, prelude in zip(self._chunks, sizes, agreed, strict=True):
            if chunk.index == rank:
                payload = self._payloads[rank * self._slot :][:length]
                self._decode(payload, chunk, prelude, factor, x[chunk.slice])


class ScatteredOwners(OwnersPartition):
    """Of any other codec that can be summed: sums that are fp32 are the result, others are read as by a receiver."""

    def __init__(self, group: Group, coding: Coding, chunks: Sequence[ChunkRange]) -> None:
        super().__init__(group, coding, chunks)
        self._sums_floats = coding.trait is Trait.REENCODE
        self._emitted = np.empty(0 if self._sums_floats else self._most("result"), np.uint8)

    def _reduce(self, sizes: list[int], agreed: list[Bytes], x: Floats, op: Op, options: CallOptions) -> Steps:
        yield from self._scatter(sizes, options)
        if self._own is None:
            return
        factor = 1.0 / self._group.size if op is Op.AVERAGE else 1.0
        chunk, accumulator = self._chunks[self._own], self._sum(self._own)
        target = x[chunk.slice]
        if self._sums_floats:
            np.multiply(accumulator.view(np.float32)[: chunk.numel], np.float32(factor), out=target)
            return
        written = self._emit(chunk, accumulator, self._emitted)
        self._decode(self._emitted[:written], chunk, agreed[self._own], factor, target)


class CodedScatter:
    """The reduce-scatters of a group, encoded as `spec` says (see Coding.of). One at a time.

    Random draws derive from the group's name and the number of the round, which all ranks have in common; `rounds` is
    that of the first. `feedback`, as long as all parts
    together, is of what this rank sends. Two-way feedback has nothing to do: no sum is encoded.
    """

    def __init__(self, group: Group, spec: str, stepper: Stepper, rounds: int = 0) -> None:
        self.feedback = Compensation()
        self._group, self._coding, self._stepper = group, Coding.of(spec), stepper
        self._partition: CodedPartition | None = None
        self._rounds = rounds

    def reduce_scatter(
        self, source: int, target: int, counts: Sequence[int], dtype: DType, op: Op, options: CallOptions = DEFAULT
    ) -> CollectiveOperation:  # fmt: skip
        """See collectives.api.Group.reduce_scatter: for sums and averages of fp32. Overwrites the source. `counts` are
        the same each time."""
        assert dtype is DType.FLOAT32
        steps = self._steps(source, target, counts, op, options)
        if self._group.size > 1:
            return self._stepper.start(steps, options.priority, f"reduce_scatter in group {self._group.name!r}")
        for _ in steps:  # over at once
            pass
        return ENDED

    def _steps(self, source: int, target: int, counts: Sequence[int], op: Op, options: CallOptions) -> Steps:
        partition = self._partition = self._partition or self._made(counts)
        if partition is None:
            return
        yield from partition.exchange(_floats(source, sum(counts)), op, self.feedback, options)
        rank = self._group.rank
        ctypes.memmove(target, source + 4 * sum(counts[:rank]), 4 * counts[rank])

    def _made(self, counts: Sequence[int]) -> CodedPartition | None:
        digest = hashlib.blake2b(self._group.name.encode(), digest_size=8).digest()
        chunks = parts(counts, int.from_bytes(digest, "little") >> 2)
        if not chunks:
            return None
        kind = ScatteredSum if self._coding.trait is Trait.DENSE else ScatteredOwners
        made = kind(self._group, self._coding, chunks)
        made.rounds = self._rounds
        return made


def parts(counts: Sequence[int], key: int) -> list[ChunkRange]:
    """Those that aren't empty, each of the rank that has that place in `counts`. `key`: the same on all ranks."""
    begins = chain([0], accumulate(counts))
    found = [(rank, begin, begin + count) for rank, (begin, count) in enumerate(zip(begins, counts, strict=False))]
    return [keyed(rank, begin, end, key) for rank, begin, end in found if begin < end]


def _floats(address: int, count: int) -> Floats:
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))
