"""All-reduce of one partition with a codec.

Codecs whose payloads are arrays that add up (DENSE) go through a plain all-reduce. The others take two hops, so that
each value is encoded exactly twice for any number of ranks, where a ring would encode it n - 1 times: the partition is
cut into one chunk per rank; every rank encodes each chunk and sends it to the rank it belongs to (all-to-all), which
sums what comes as the codec says and hands the result to all (all-gather). That is qgZ of ZeRO++ (Wang et al., 2023)
for any codec.

On the wire per rank, of n: (n - 1)/n of the partition's payload out and in, then as much of the result; before them
the prelude, all-reduced, and where sizes vary, these.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence

import numpy as np
from numpy.typing import NDArray

from byteps_like.collectives.api import CallOptions, CollectiveOperation, Group
from byteps_like.collectives.schedules.chunks import ChunkRange, cut
from byteps_like.compression.codec import SERVER_RANK, Floats, Trait
from byteps_like.compression.feedback import Compensation
from byteps_like.compression.registry import Coding
from byteps_like.dtypes import DType, Op

Steps = Generator[CollectiveOperation, None, None]
"""What is waited for, one after the other."""
Bytes = NDArray[np.uint8]

_ALIGNMENT = 64  # bytes: where payloads begin
_GRAINS = 32  # sizes that vary are rounded up to one of so many: each new one costs a plan


class CodedPartition(ABC):
    """Memory and codec of one partition over one group. One exchange at a time. `key`: the same on all ranks."""

    rounds = 0
    """How many there were: random draws derive from it."""

    def __init__(self, group: Group, coding: Coding, chunks: Sequence[ChunkRange]) -> None:
        self._group, self._chunks = group, chunks
        import byteps_like._core as _core  # where there is none, there are no groups either

        self._codec = _core.Codec(coding.spec, group.size)
        self._plans = [self._codec.plan(chunk.numel) for chunk in chunks]
        self._largest = max(self._plans, key=lambda plan: int(plan["payload"]))
        self._prelude = _aligned(sum(plan["prelude"] for plan in self._plans))
        self._slot = _padded(self._most("payload"))
        self._payloads = _aligned(self._slot * group.size)

    def _most(self, what: str) -> int:
        """Bytes that any chunk needs: of two with equal payloads one may have the larger accumulator."""
        return max(int(plan[what]) for plan in self._plans)

    def exchange(self, x: Floats, op: Op, feedback: Compensation, options: CallOptions) -> Steps:
        """Replaces `x`, the partition, by its sum or average over the group. Each yield is to be waited for."""
        feedback.before(x)
        agreed = yield from self._agree(x, options)
        sizes = [self._encode(x, *item, feedback) for item in zip(self._chunks, agreed, strict=True)]
        feedback.after(x)
        yield from self._reduce(sizes, agreed, x, op, options)
        self.rounds += 1

    @abstractmethod
    def _reduce(self, sizes: list[int], agreed: list[Bytes], x: Floats, op: Op, options: CallOptions) -> Steps:
        """From this rank's payloads of all chunks, in their slots, to the sum in `x`."""

    def _draw(self, chunk: ChunkRange, rank: int) -> tuple[int, int, int]:
        return chunk.key, self.rounds, rank

    def _agree(self, x: Floats, options: CallOptions) -> Generator[CollectiveOperation, None, list[Bytes]]:
        """The preludes of all chunks in one all-reduce."""
        bounds = np.cumsum([plan["prelude"] for plan in self._plans])
        own = np.split(self._prelude, bounds[:-1])
        if self._prelude.size:
            for chunk, prelude in zip(self._chunks, own, strict=True):
                self._codec.prepare(x[chunk.slice], self._draw(chunk, self._group.rank), prelude)
            dtype, op = DType(self._largest["prelude_dtype"]), Op(self._largest["prelude_op"])
            address, count = self._prelude.ctypes.data, self._prelude.size // dtype.itemsize
            yield self._group.all_reduce(address, address, count, dtype, op, options)
        return own

    def _encode(self, x: Floats, chunk: ChunkRange, agreed: Bytes, feedback: Compensation) -> int:
        payload = self._payloads[chunk.index * self._slot :][: self._slot]
        draw, residual = self._draw(chunk, self._group.rank), feedback.part(chunk.slice).residual
        if residual is None:
            return int(self._codec.encode(x[chunk.slice], draw, agreed, payload))
        return int(self._codec.encode_with_residual(x[chunk.slice], draw, agreed, payload, residual))

    def _decode(self, result: Bytes, chunk: ChunkRange, agreed: Bytes, factor: float, out: Floats) -> None:
        draw = self._draw(chunk, SERVER_RANK)
        self._codec.decode(result, self._group.size, draw, agreed, factor, out)


class SummedPartition(CodedPartition):
    """Of a DENSE codec: its payloads add up. Floats are averaged by the all-reduce, integers when they are decoded."""

    def _reduce(self, sizes: list[int], agreed: list[Bytes], x: Floats, op: Op, options: CallOptions) -> Steps:
        dtype = DType(self._largest["dense"])
        address = self._payloads.ctypes.data
        reduction = op if dtype.is_float else Op.SUM
        yield self._group.all_reduce(address, address, sizes[0] // dtype.itemsize, dtype, reduction, options)
        factor = 1.0 / self._group.size if op is Op.AVERAGE and not dtype.is_float else 1.0
        self._decode(self._payloads[: sizes[0]], self._chunks[0], agreed[0], factor, x)


class OwnersPartition(CodedPartition):
    """Of any other codec that can be summed: payloads go to the ranks that their chunks belong to, which sum them."""

    def __init__(self, group: Group, coding: Coding, chunks: Sequence[ChunkRange]) -> None:
        super().__init__(group, coding, chunks)
        self._variable = coding.variable
        self._received = _aligned(self._slot * group.size)
        self._accumulator = _aligned(self._most("accumulator"))
        self._sizes = np.zeros((3, group.size), np.uint32)  # of what is sent, of what comes, of all results
        self._own = next((number for number, chunk in enumerate(chunks) if chunk.index == group.rank), None)
        """Which of the chunks is this rank's; None: none."""

    def _scatter(self, sizes: list[int], options: CallOptions) -> Steps:
        for chunk, nbytes in zip(self._chunks, sizes, strict=True):
            self._sizes[0, chunk.index] = nbytes
        source, target, size = self._payloads.ctypes.data, self._received.ctypes.data, self._group.size
        if not self._variable:
            yield self._group.all_to_all(source, target, self._slot, self._slot, DType.UINT8, options)
            self._sizes[1] = self._sizes[0, self._group.rank]
            return
        out, came = self._sizes[0], self._sizes[1]
        yield self._group.all_to_all(out.ctypes.data, came.ctypes.data, 1, 1, DType.UINT32, options)
        from_, to = ([base + rank * self._slot for rank in range(size)] for base in (source, target))
        send, receive = ([grain(int(one), self._slot) for one in side] for side in (out, came))
        yield self._group.all_to_all(from_, to, send, receive, DType.UINT8, options)

    def _sum(self, own: int) -> Bytes:
        """The codec's accumulator for this rank's chunk, number `own`, with all ranks' payloads."""
        numel = self._chunks[own].numel
        accumulator = self._accumulator[: self._plans[own]["accumulator"]]
        self._codec.reset(numel, accumulator)
        for sender in range(self._group.size):
            payload = self._received[sender * self._slot :][: int(self._sizes[1, sender])]
            self._codec.accumulate(numel, payload, accumulator)
        return accumulator

    def _emit(self, chunk: ChunkRange, accumulator: Bytes, result: Bytes) -> int:
        draw = self._draw(chunk, SERVER_RANK)
        return int(self._codec.emit(chunk.numel, self._group.size, draw, accumulator, result))


class TwoHopPartition(OwnersPartition):
    """The owners hand the sums to all, encoded once more."""

    def __init__(self, group: Group, coding: Coding, chunks: Sequence[ChunkRange]) -> None:
        super().__init__(group, coding, chunks)
        self._result_slot = _padded(self._most("result"))
        self._results = _aligned(self._result_slot * group.size)
        own = 0 if self._own is None else chunks[self._own].numel
        self._kept = np.zeros(own if coding.two_way else 0, np.float32)

    def _reduce(self, sizes: list[int], agreed: list[Bytes], x: Floats, op: Op, options: CallOptions) -> Steps:
        yield from self._scatter(sizes, options)
        self._sizes[2, self._group.rank] = 0 if self._own is None else self._result(self._own)
        yield from self._gather(options)
        factor = 1.0 / self._group.size if op is Op.AVERAGE else 1.0
        for chunk, prelude in zip(self._chunks, agreed, strict=True):
            result = self._results[chunk.index * self._result_slot :][: int(self._sizes[2, chunk.index])]
            self._decode(result, chunk, prelude, factor, x[chunk.slice])

    def _result(self, own: int) -> int:
        """Puts the encoded sum of this rank's chunk into its slot; its bytes."""
        chunk, accumulator = self._chunks[own], self._sum(own)
        if self._kept.size:
            accumulator.view(np.float32)[: chunk.numel] += self._kept
            self._kept[:] = accumulator.view(np.float32)[: chunk.numel]
        result = self._results[self._group.rank * self._result_slot :][: self._result_slot]
        written = self._emit(chunk, accumulator, result)
        if self._kept.size:
            said = np.empty_like(self._kept)
            self._decode(result[:written], chunk, _NOTHING, 1.0, said)
            self._kept -= said
        return written

    def _gather(self, options: CallOptions) -> Steps:
        rank, size, sizes = self._group.rank, self._group.size, self._sizes[2]
        base = self._results.ctypes.data
        own = base + rank * self._result_slot
        if not self._variable:
            yield self._group.all_gather(own, base, [self._result_slot] * size, DType.UINT8, options)
            sizes[: len(self._plans)] = [plan["result"] for plan in self._plans]
            return
        start = sizes.ctypes.data
        yield self._group.all_gather(start + 4 * rank, start, [1] * size, DType.UINT32, options)
        places = [base + number * self._result_slot for number in range(size)]
        counts = [grain(int(one), self._result_slot) for one in sizes]
        yield self._group.all_gather(own, places, counts, DType.UINT8, options)


_NOTHING = np.zeros(0, np.uint8)


def coded_partition(group: Group, coding: Coding, key: int, numel: int) -> CodedPartition:
    """For `numel` elements over `group`. Raises InvalidArgumentError for a codec that can't be summed."""
    dense = coding.trait is Trait.DENSE
    chunks = cut(numel, 1 if dense else group.size, key)
    return (SummedPartition if dense else TwoHopPartition)(group, coding, chunks)


def grain(size: int, most: int) -> int:
    """The bytes that travel for `size`, of sizes that vary up to `most`."""
    step = _padded(-(-most // _GRAINS))
    return min(-(-size // step) * step, most)


def _padded(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _aligned(nbytes: int) -> Bytes:
    memory = np.zeros(nbytes + _ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT
    return memory[begin : begin + nbytes]
