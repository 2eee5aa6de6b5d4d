"""One contiguous buffer for all parameters of an element type, and the round in which its chunks are updated.

A chunk goes through reduce-scatter, update and all-gather by itself, so that one is updated while others are on
their way (CoCoNet, ASPLOS'22; ZeRO, SC'20).
"""

from __future__ import annotations

import queue
from collections.abc import Sequence

import torch

from byteps_like.collectives.api import CallOptions, CollectiveOperation, Keeper, Traffic
from byteps_like.dtypes import DType, Op
from byteps_like.errors import MismatchError
from byteps_like.torch.device.inflight import park
from byteps_like.torch.device.tensors import mark_changed, tensor_over, wire_dtype
from byteps_like.torch.gradients.parts import Named, Scaling, signature
from byteps_like.torch.job.routes import Request, Route
from byteps_like.torch.sharded.chunk import ShardChunk, Staging
from byteps_like.torch.sharded.gradient import ShardSlot
from byteps_like.torch.sharded.layout import UNIT, ShardLayout, lay_out_shards
from byteps_like.worker.api import TensorSpec

Arrivals = queue.PriorityQueue[tuple[int, int]]
"""(-priority, number) of the chunks whose reduced gradients have come."""


class ShardArena:
    """The parameters of `named`, all of one element type, and their gradients' way through a round.

    A chunk's gradients are copied to a staging buffer when backward has made them, which frees them; when all of a
    chunk are there its reduce-scatter starts. `finish` sends the rest, and a control vector: one element per
    parameter that says "this rank had a gradient", one "this rank throws the round away", one "it takes part".

    Steps and bytes on the wire, per chunk of m bytes, n ranks and the algorithms that large chunks get: each rank
    sends and receives (n-1)/n m in the reduce-scatter, and as much in the all-gather. All ranks must call `finish`
    equally often. Not thread-safe: it belongs to the thread that runs backward.
    """

    def __init__(self, route: Route, label: str, named: Sequence[Named], scaling: Scaling) -> None:
        self.slots = [ShardSlot(name, parameter, index) for index, (name, parameter) in enumerate(named)]
        self._route, self.label = route, label
        self.rank, self.size = route.worker.rank, route.worker.size
        self._terms = scaling.terms(self.size)
        dtype = named[0][1].dtype
        self.code = wire_dtype(dtype)
        self.layout = self._lay_out()
        self.data = tensor_over(route.worker.empty_shared(max(self.layout.total * self.code.itemsize, UNIT)), dtype)
        for slot, offset in zip(self.slots, self.layout.offsets, strict=True):
            slot.move(self.data, offset)
            slot.parts = self.layout.chunks_of(slot.index)
        self.chunks = [ShardChunk(self.layout, chunk, self.data, self.rank) for chunk in self.layout.chunks]
        self.lanes = [route.worker.group(f"{label}/{number}") for number in range(len(self.chunks))]
        self.control_lane = route.worker.group(f"{label}/control")
        self.control = torch.zeros(len(self.slots) + 2, device="cpu")
        self.staging = Staging(route, max((chunk.end - chunk.begin for chunk in self.layout.chunks), default=0), dtype)
        self._gathers: list[CollectiveOperation] = []
        self.longest = 0
        """Chunks of the longest arena beside this one."""
        self.arrivals: Arrivals = queue.PriorityQueue()
        self.reset()

    def _lay_out(self) -> ShardLayout:
        """Asks the ranks whether they have the same parameters, and the job for the size of its partitions."""
        sizes = [slot.parameter.numel() for slot in self.slots]
        total = lay_out_shards(sizes, self.code.itemsize, 1 << 62, self.size).total
        same = signature(self.label, [(slot.name, slot.parameter.shape) for slot in self.slots])
        declared, cut = self._route.declare([same, TensorSpec(self.label, self.code, (total,))])
        self._route.push_pull(declared, 0, Op.SUM, Request(parts=range(0), priority=0)).wait()
        chunk_bytes = cut.partitions[0].nbytes if cut.partitions else 1
        return lay_out_shards(sizes, self.code.itemsize, chunk_bytes, self.size)

    def reset(self) -> None:
        """A new round begins."""
        for slot in self.slots:
            slot.reset()
        for chunk in self.chunks:
            chunk.staging, chunk.flight, chunk.waiting = None, None, set(chunk.pieces)
        self.arrivals = queue.PriorityQueue()

    # Backward

    def ready(self, slot: ShardSlot) -> None:
        """The gradient of `slot` is complete on this rank: stages it, and sends the chunks that waited for it only."""
        self._stage(slot, slot.take())

    def reached(self, slot: ShardSlot) -> None:
        """Nothing: its chunks stay as they are cut."""

    def _stage(self, slot: ShardSlot, flat: torch.Tensor | None) -> None:
        for number in slot.parts:
            chunk = self.chunks[number]
            piece = chunk.pieces[slot.index]
            staging = self._staging(chunk)
            target = staging[piece.begin - chunk.place.begin : piece.end - chunk.place.begin]
            if flat is None:
                target.zero_()
            else:
                target.copy_(flat[piece.start : piece.start + piece.end - piece.begin])
            chunk.waiting.discard(slot.index)
            if not chunk.waiting:
                self._reduce(number, chunk, staging)

    def _staging(self, chunk: ShardChunk) -> torch.Tensor:
        if chunk.staging is None:
            chunk.staging = self.staging.take()
        return chunk.staging

    def _reduce(self, number: int, chunk: ShardChunk, staging: torch.Tensor) -> None:
        if self._terms.before != 1.0:
            staging.mul_(self._terms.before)
        arrivals, pool, reduced = self.arrivals, self.staging, chunk.reduced
        held = Keeper(reduced)  # as staging by `arrived`: an optimizer may be dropped in the middle of a round

        def arrived() -> None:
            held()
            pool.give(staging)
            arrivals.put((-number, number))

        lane, source, target = self.lanes[number], staging.data_ptr(), reduced.data_ptr()
        chunk.flight = lane.reduce_scatter(
            source, target, chunk.place.counts, self.code, self._terms.op, self._urgency(number)
        )
        chunk.staging = None
        chunk.flight.on_done(arrived)

    # The end of the round

    def finish(self, discard: bool) -> None:
        """Sends what was not sent yet: gradients that no backward made ready, and the control elements."""
        for slot in self.slots:
            slot.check_place()
        present = [0.0 if discard or slot.parameter.grad is None else 1.0 for slot in self.slots]
        for slot in self.slots:
            if not slot.ready:
                self._stage(slot, None if discard else slot.take())
        self.control.copy_(torch.tensor([*present, float(discard), 1.0], device="cpu"))
        address, options = self.control.data_ptr(), CallOptions(traffic=Traffic.CONTROL)
        flight = self.control_lane.all_reduce(address, address, len(self.control), DType.FLOAT32, Op.SUM, options)
        flight.on_done(Keeper(self.control))
        flight.wait()
        if 0.0 < self.control[-2] < self.control[-1]:
            raise MismatchError(
                "some ranks cleared their gradients after backward() while others went on to step();"
                " all ranks must make the same calls in the same order",
                rank=self.rank,
                key=self.label,
            )

    def wait(self) -> None:
        """Blocks until the reduced gradients of this rank's shares are here."""
        for chunk in self.chunks:
            if chunk.flight is not None:
                chunk.flight.wait()

    def present(self, slot: int) -> bool:
        """Whether any rank had a gradient for that parameter; only after `finish`."""
        return bool(self.control[slot] > 0)

    def land(self) -> None:
        """Hands reduced gradients to the slices, once they are all here or each by `land_chunk`."""
        for number in range(len(self.chunks)):
            self.land_chunk(number)

    def land_chunk(self, number: int) -> None:
        """The same for one chunk. Raises what its reduce-scatter failed with."""
        chunk = self.chunks[number]
        if chunk.flight is None:
            return
        chunk.flight.wait()
        chunk.flight = None
        if self._terms.after != 1.0:
            chunk.reduced.mul_(self._terms.after)
        for slot, piece in chunk.slices.items():
            piece.grad = chunk.gradients[slot] if self.present(slot) else None

    def gather(self, number: int) -> None:
        """Starts handing this rank's updated share of a chunk to the others, and theirs to it."""
        chunk = self.chunks[number]
        if not any(self.present(slot) for slot in chunk.pieces):
            return
        itemsize = self.code.itemsize
        source = self.data.data_ptr() + chunk.begin * itemsize
        target = self.data.data_ptr() + chunk.place.begin * itemsize
        counts, options = chunk.place.counts, self._urgency(number)
        self._gathers.append(self.lanes[number].all_gather(source, target, counts, self.code, options))

    def wait_gathered(self) -> None:
        """Blocks until all parameters are those of the new step. Raises the first error, after waiting for all."""
        flights, self._gathers = self._gathers, []
        failure: Exception | None = None
        for flight in flights:
            try:
                flight.wait()
            except Exception as error:  # noqa: BLE001 - raised again below
                failure = failure or error
        if failure is not None:
            park(list(flights), self.data)
            raise failure
        for slot in self.slots:
            if self.present(slot.index):
                mark_changed(slot.parameter)

    def abandon(self) -> None:
        """Forgets the arena. What is still in flight keeps the memory until it has landed."""
        if self._gathers:
            park(list(self._gathers), self.data)

    @property
    def partitions(self) -> int:
        """Number of its chunks."""
        return len(self.chunks)

    def _urgency(self, number: int) -> CallOptions:
        # Later chunks hold layers nearer to the input, which the next forward needs first; the last ones of all arenas
        # are equally urgent.
        return CallOptions(priority=number + max(self.longest - self.partitions, 0), traffic=Traffic.GRADIENT)
