"""One contiguous buffer for all parameters of an element type, and the round in which its chunks are updated.

A chunk goes through reduce-scatter, update and all-gather by itself, so that one is updated while others are on
their way (CoCoNet, ASPLOS'22; ZeRO, SC'20).
"""

from __future__ import annotations

import queue
from collections.abc import Mapping, Sequence
from contextlib import suppress

import torch

from byteps_like.collectives.api import CallOptions, CollectiveOperation, Keeper, Traffic
from byteps_like.dtypes import DType, Op
from byteps_like.errors import MismatchError, ShutdownError
from byteps_like.torch.compression.policy import Compress
from byteps_like.torch.device.inflight import park
from byteps_like.torch.device.tensors import mark_changed, tensor_over, wire_dtype
from byteps_like.torch.gradients.bucket import Departed
from byteps_like.torch.gradients.coding import ArenaCoding, Memory
from byteps_like.torch.gradients.controls import THREW_AWAY
from byteps_like.torch.gradients.parts import Named, RoundTerms, Scaling, retire, signature
from byteps_like.torch.gradients.relay import Promised
from byteps_like.torch.gradients.rescaling import Rescaling
from byteps_like.torch.job.routes import Request, Route
from byteps_like.torch.sharded.chunk import ShardChunk, Staging
from byteps_like.torch.sharded.gradient import ShardSlot
from byteps_like.torch.sharded.layout import UNIT, ShardLayout, lay_out_shards
from byteps_like.torch.sharded.wire import ShardWire
from byteps_like.worker.api import Declared, Handle, Links, TensorSpec
from byteps_like.worker.local import CompletedHandle

Arrivals = queue.PriorityQueue[tuple[int, int]]
"""(-priority, number) of the chunks whose reduced gradients have come."""


def lost_shares() -> ShutdownError:
    """The error for shares of ranks that are gone."""
    return ShutdownError(
        "the world in which this optimizer was sharded has ended, and with it the other ranks' shares of its"
        " state; keep state_dict() before shutdown() or suspend(), and wrap a plain optimizer again"
    )


class ShardArena:
    """The parameters of `named`, all of one element type and `way`, and their gradients' way through a round.

    A chunk's gradients are copied to a staging buffer when backward has made them, which frees them; when all of a
    chunk are there its reduce-scatter starts. `finish` sends the rest, and a control vector: one element per
    parameter that says "this rank had a gradient", one "this rank throws the round away", one "it takes part".

    Steps and bytes on the wire, per chunk of m bytes, n ranks and the algorithms that large chunks get: each rank
    sends and receives (n-1)/n m in the reduce-scatter, and as much in the all-gather. All ranks must call `finish`
    equally often. Not thread-safe: it belongs to the thread that runs backward.
    """

    complete = True
    """Whether all ranks took part in the round that has landed: nobody joins beside a sharded optimizer."""

    def __init__(
        self,
        route: Route,
        label: str,
        named: Sequence[Named],
        way: Compress,
        scaling: Scaling,
        partition_bytes: int = 0,
    ) -> None:
        dtype = named[0][1].dtype
        wire = way.wire_dtype(dtype)
        self.slots = [ShardSlot(name, parameter, index, wire) for index, (name, parameter) in enumerate(named)]
        self._route, self.label = route, label
        self._clip, self._scaling = way.clip, scaling
        self._view = route.worker.standing
        self._terms: RoundTerms | None = None
        """Of the round under way, if one is."""
        self.rescaling = Rescaling()
        self.code = wire_dtype(dtype)
        self.layout = self._lay_out(way, partition_bytes)
        self.wire = ShardWire(way, dtype, self.layout.total)
        self.data = tensor_over(route.worker.empty_shared(max(self.layout.total * self.code.itemsize, UNIT)), dtype)
        for slot, offset in zip(self.slots, self.layout.offsets, strict=True):
            slot.move(self.data, offset)
        if self.wire.coding is not None:
            self.wire.coding.place(self.slots, self.layout.offsets)
        self.control_lane = route.worker.group(f"{label}/control")
        self.control = torch.zeros(len(self.slots) + 2, device="cpu")
        self._control: CollectiveOperation | None = None
        self._gathers: list[CollectiveOperation] = []
        self.longest = 0
        """Chunks of the longest arena beside this one."""
        self.links = Links()
        """How messages are cut, as tuning has it."""
        self.settled = False
        """Whether a round has come to its end: that shows which parameters are read without a call of their module."""
        self._discarded = self._departed = False
        self._version = 0
        self._cut()
        self.reset()

    def _lay_out(self, way: Compress, partition_bytes: int) -> ShardLayout:
        """Asks the ranks whether they have the same parameters, and the job for the size of its partitions."""
        sizes = [slot.parameter.numel() for slot in self.slots]
        total = lay_out_shards(sizes, self.code.itemsize, 1 << 62, self._view.size).total
        known: list[tuple[str, Sequence[int]]] = [(slot.name, slot.parameter.shape) for slot in self.slots]
        same = signature(self.label, [(way.text(0), ()), *known] if way.is_coded else known)
        spec = TensorSpec(self.label, self.code, (total,), partition_bytes=partition_bytes)
        declared, cut = self._route.declare([same, spec])
        self._route.push_pull(declared, 0, Op.SUM, Request(parts=range(0), priority=0)).wait()
        return self._layout(cut)

    def _layout(self, declared: Declared) -> ShardLayout:
        sizes = [slot.parameter.numel() for slot in self.slots]
        chunk_bytes = declared.partitions[0].nbytes if declared.partitions else 1
        return lay_out_shards(sizes, self.code.itemsize, chunk_bytes, self._view.size)

    def recut(self, partition_bytes: int) -> None:
        """Between rounds, on all ranks alike: chunks of so many bytes (0: as the job has partitions) from now on.

        Parameters stay where they are, but other ranks update them: the state has to move (see state.moved).
        """
        self._version += 1
        total = self.layout.total
        spec = TensorSpec(f"{self.label}/{self._version}", self.code, (total,), partition_bytes=partition_bytes)
        (cut,) = self._route.declare([spec])
        self.layout = self._layout(cut)
        retire(self._route.worker, [cut])
        for lane in self.lanes:
            lane.release()  # plans for the sizes that they had
        self._cut()
        self.reset()

    def _cut(self) -> None:
        """Chunks and their lanes, by the layout."""
        layout, wire, worker = self.layout, self.wire.dtype, self._route.worker
        for slot in self.slots:
            slot.parts = layout.chunks_of(slot.index)
        self.chunks = [ShardChunk(layout, chunk, self.data, self._view.rank, wire) for chunk in layout.chunks]
        self.lanes = [worker.group(f"{self.label}/{number}") for number in range(len(self.chunks))]
        longest = max((chunk.end - chunk.begin for chunk in layout.chunks), default=0)
        self.staging = Staging(self._route, longest, wire)
        self.wire.connect(worker, self.lanes, self.chunks)

    def reset(self) -> None:
        """A new round begins; the one before is over, or has departed."""
        for slot in self.slots:
            slot.reset()
        if self._departed:
            return
        if self._terms is not None:
            # By another rank, too: what was sent is applied nowhere.
            others = self._control is not None and bool(self.control[-2] > 0.0)
            self.wire.end(self.present, self._discarded or others)
        self._terms, self._discarded, self._control = None, False, None
        for chunk in self.chunks:
            chunk.staging, chunk.flight, chunk.waiting = None, None, set(chunk.pieces)
        self.arrivals: Arrivals = queue.PriorityQueue()

    def _enter(self) -> RoundTerms:
        """A round begins, if none has. Raises ShutdownError if the shares are of other ranks than there are now."""
        if self._terms is None:
            now = self._route.worker.standing
            if (now.rank, now.members) != (self._view.rank, self._view.members):
                raise lost_shares()
            self._terms = self._scaling.terms(now.size)
            for slot in self.slots:
                slot.limit = self._clip / now.size**0.5
            self.wire.begin(self.slots, self.rescaling)
        return self._terms

    # Backward

    def ready(self, slot: ShardSlot) -> None:
        """The gradient of `slot` is complete on this rank: stages it, and sends the chunks that waited for it only."""
        self._enter()
        self._stage(slot, slot.take())

    def reached(self, slot: ShardSlot) -> None:
        """Nothing: its chunks stay as they are cut."""

    def _stage(self, slot: ShardSlot, flat: torch.Tensor | None) -> None:
        if flat is None:
            self.wire.keep(slot)
        for number in slot.parts:
            chunk = self.chunks[number]
            piece = chunk.pieces[slot.index]
            staging = chunk.staged(self.staging)
            target = staging[piece.begin - chunk.place.begin : piece.end - chunk.place.begin]
            if flat is None:
                target.zero_()
            else:
                target.copy_(flat[piece.start : piece.start + piece.end - piece.begin])
            chunk.waiting.discard(slot.index)
            if not chunk.waiting:
                self._reduce(number, chunk, staging)

    def _reduce(self, number: int, chunk: ShardChunk, staging: torch.Tensor) -> None:
        terms, filled = self._enter(), staging[: chunk.place.end - chunk.place.begin]
        if terms.before != 1.0:
            filled.mul_(terms.before)
        self.wire.before(filled, chunk)
        arrivals, pool, landing = self.arrivals, self.staging, chunk.landing
        held = Keeper(landing, self.wire.coding)  # as staging: an optimizer may be dropped in the middle of a round

        def arrived() -> None:
            held()
            pool.give(staging)
            arrivals.put((-number, number))

        scatter, counts, urgency = self.wire.scatters[number], chunk.place.counts, self._urgency(number)
        if self.is_coded:  # by calls of other kinds, which have other algorithms
            urgency = urgency._replace(algorithm="")
        source, target, code = staging.data_ptr(), landing.data_ptr(), self.wire.code
        chunk.flight = scatter.reduce_scatter(source, target, counts, code, terms.op, urgency)
        chunk.staging = None
        chunk.flight.on_done(arrived)

    # The end of the round

    def check(self) -> None:
        """Raises InvalidArgumentError if a gradient was put where one was sent already, or a parameter was moved."""
        for slot in self.slots:
            slot.check_place()
            slot.check_grad()

    def finish(self, discard: bool) -> None:
        """Sends what was not sent yet: gradients that no backward made ready, and the control elements."""
        self._enter()
        self._discarded = discard
        present = [0.0 if discard or slot.parameter.grad is None else 1.0 for slot in self.slots]
        for slot in self.slots:
            if not slot.ready:
                self._stage(slot, None if discard else slot.take())
        self.control.copy_(torch.tensor([*present, float(discard), 1.0], device="cpu"))
        address, options = self.control.data_ptr(), CallOptions(traffic=Traffic.CONTROL)
        flight = self.control_lane.all_reduce(address, address, len(self.control), DType.FLOAT32, Op.SUM, options)
        flight.on_done(Keeper(self.control))
        self._control = flight

    def check_agreed(self) -> None:
        """See Bucket. Blocks until the control elements are here."""
        assert self._control is not None
        self._control.wait()
        if 0.0 < self.control[-2] < self.control[-1]:
            raise MismatchError(
                f"some ranks {THREW_AWAY}",
                rank=self._view.rank,
                key=self.label,
            )

    def wait(self) -> None:
        """Blocks until the reduced gradients of this rank's shares are here."""
        for chunk in self.chunks:
            if chunk.flight is not None:
                chunk.flight.wait()

    def calm_down(self) -> None:
        """After an error, in a round that is `finish`ed: blocks until nothing is in flight, for the next one uses the
        same memory, and a codec encodes for one at a time."""
        flights = [chunk.flight for chunk in self.chunks if chunk.flight is not None and self._control is not None]
        for flight in [*flights, *self._gathers]:
            with suppress(Exception):
                flight.wait()
        self._gathers.clear()

    def has(self, slot: int) -> bool:
        """Whether any rank had a gradient for that parameter; only after `check_agreed`."""
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
        chunk.land(self._enter().after)
        for slot, piece in chunk.slices.items():
            piece.grad = chunk.gradients[slot] if self.has(slot) else None

    def gather(self, number: int) -> Handle:
        """Starts handing this rank's updated share of a chunk to the others, and theirs to it."""
        chunk = self.chunks[number]
        if not any(self.has(slot) for slot in chunk.pieces):
            return CompletedHandle()
        itemsize = self.code.itemsize
        source = self.data.data_ptr() + chunk.begin * itemsize
        target = self.data.data_ptr() + chunk.place.begin * itemsize
        counts, options = chunk.place.counts, self._urgency(number)
        self._gathers.append(self.lanes[number].all_gather(source, target, counts, self.code, options))
        return self._gathers[-1]

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
            self.land_one(slot, self.has(slot.index))
        self.settled = True

    # A round that departs. See Bucket, and Landing: its partitions are the chunks, and last the control elements

    def depart(self) -> tuple[Departed, list[Promised]]:
        """Instead of waiting, for a round that is `finish`ed: what is in flight, and for each chunk what is to be told
        of its all-gather. `landed` must be called before any gradient of another round is `ready`."""
        assert self._control is not None
        self._departed = True
        promised = [Promised() for _ in self.chunks]
        flown: list[tuple[range, Handle]] = [
            (range(number, number + 1), promise) for number, promise in enumerate(promised)
        ]
        return Departed(self, [*flown, (self.commits, self._control)]), promised

    def landed(self) -> None:
        """See Bucket."""
        if self._departed:
            self._departed = False
            self.calm_down()
            self.reset()

    @property
    def commits(self) -> range:
        """See Landing."""
        return range(self.partitions, self.partitions + 1)

    def priority(self, run: range) -> int:
        """See Landing."""
        return self._urgency(run.start).priority

    def present(self) -> list[bool]:
        """See Landing."""
        return [self.has(slot.index) for slot in self.slots]

    def sparse(self) -> list[ShardSlot]:
        """None: they are made dense."""
        return []

    def land_one(self, slot: ShardSlot, present: bool) -> None:
        """The parameter has its new value, if it was `present`; its gradient has gone to the shares."""
        slot.parameter.grad = None
        if present:
            mark_changed(slot.parameter)

    def abandon(self) -> None:
        """Forgets the arena. What is still in flight keeps the memory until it has landed."""
        if self._gathers:
            park(list(self._gathers), self.data)

    @property
    def rank(self) -> int:
        """This rank's among those that its chunks are cut over."""
        return self._view.rank

    @property
    def landing_bytes(self) -> int:
        """Of buffers that sums land in, where the wire has another element type than the parameters."""
        return sum(chunk.landing.nbytes for chunk in self.chunks if chunk.landing is not chunk.reduced)

    # What its codec remembers. See Bucket

    @property
    def coding(self) -> ArenaCoding | None:
        """See Bucket."""
        return self.wire.coding

    @property
    def remembers(self) -> bool:
        """See Bucket."""
        return self.coding is not None

    @property
    def codec(self) -> str:
        """See Bucket."""
        return self.wire.codec

    @property
    def is_coded(self) -> bool:
        """See Bucket."""
        return bool(self.codec)

    @property
    def windows(self) -> list[range]:
        """See Bucket."""
        return [range(chunk.place.begin, chunk.place.end) for chunk in self.chunks] if self.remembers else []

    def recode(self, rounds: int) -> None:
        """See Bucket."""
        if self.coding is not None and self.codec != (text := self.coding.text(rounds)):
            self.wire.codec = text
            self.wire.connect(self._route.worker, self.lanes, self.chunks)

    def switch(self, coded: bool, rounds: int) -> None:
        """See Bucket."""
        if self.coding is not None:
            self.coding.switch(coded)
            self.recode(rounds)

    def recall(self) -> dict[str, Memory]:
        """See Bucket."""
        return {} if self.coding is None else self.coding.recall(self.slots)

    def remember(self, memories: Mapping[str, Memory]) -> None:
        """See Bucket."""
        if self.coding is not None:
            self.coding.remember(self.slots, memories)

    def forget(self) -> None:
        """See Bucket."""
        if self.coding is not None:
            self.coding.forget()

    @property
    def partitions(self) -> int:
        """Number of its chunks."""
        return len(self.chunks)

    def _urgency(self, number: int) -> CallOptions:
        # Later chunks hold layers nearer to the input, which the next forward needs first; the last ones of all arenas
        # are equally urgent.
        priority, links = number + max(self.longest - self.partitions, 0), self.links
        return CallOptions(
            algorithm=links.algorithm, traffic=Traffic.GRADIENT, priority=priority, segment_bytes=links.segment_bytes
        )
