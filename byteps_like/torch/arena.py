"""One contiguous buffer for all gradients of an element type, and the round in which its partitions are reduced."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch

from byteps_like.dtypes import DType, Op
from byteps_like.errors import BytePSLikeError, MismatchError
from byteps_like.torch.arena_memory import ArenaMemory
from byteps_like.torch.coding import Coding, Memory
from byteps_like.torch.compress import Compress
from byteps_like.torch.devices import Device
from byteps_like.torch.flown import call_all, park
from byteps_like.torch.rescaling import Rates
from byteps_like.torch.routes import Request, Route
from byteps_like.torch.slot import Slot
from byteps_like.torch.tensors import wire_dtype
from byteps_like.worker.api import Declared, Handle, TensorSpec, Tunable
from byteps_like.worker.layout import CONTROLS, FLAGS, Layout, lay_out, partitions_of, pieces, runs

Named = tuple[str, torch.Tensor]
Flown = tuple[range, Handle]
"""Partitions that were sent together, and the operation that they are in flight by."""


@dataclass(frozen=True)
class Scaling:
    """How gradients are reduced. With `predivide` f an average becomes: divide by f, sum, multiply by f / size."""

    op: Op = Op.AVERAGE
    predivide: float = 1.0

    def steps(self, size: int) -> tuple[float, Op, float]:
        """Factor before, what is asked of the network, factor after."""
        if self.predivide == 1.0:
            return 1.0, self.op, 1.0
        return 1.0 / self.predivide, Op.SUM, self.predivide / size


@dataclass(frozen=True)
class Piece:
    """A part of an arena that is declared by itself: `parts` are its partitions' numbers there, `offset` its bytes."""

    declared: Declared
    parts: range
    offset: int


def _pieces(declared: Sequence[Declared]) -> list[Piece]:
    found, part, offset = [], 0, 0
    for item in declared:
        count = len(item.partitions)
        found.append(Piece(item, range(part, part + count), offset))
        part, offset = part + count, offset + item.spec.nbytes
    return found


class Arena:
    """The gradients of `named`, all of one element type and `way`, in memory that the network reads and writes.

    The buffer is cut into partitions when its names are declared: one name, or with `crossing`, where the next forward
    waits for its own layers only, several, for finer partitions towards its end (see layout.pieces). A partition is
    sent as soon as all gradients in it are `ready`; `finish` sends the rest. At the tail are control elements, reduced
    with the gradients: one per gradient that says "this rank had one", one per gradient "it was sparse", one "this rank
    throws the round away", one "this rank takes part", which ranks that have joined do not. Where gradients are coded,
    or on a device, the control elements are a tensor of their own, which goes raw, from this host's memory. On a device
    `wait` has the current stream wait for the gradients; the host waits for the control elements of the other hosts.

    All ranks must call `finish` equally often. Not thread-safe: it belongs to the thread that runs backward.
    """

    def __init__(
        self,
        route: Route,
        label: str,
        named: Sequence[Named],
        way: Compress,
        scaling: Scaling,
        crossing: bool = False,
        partition_bytes: int = 0,
    ) -> None:
        wire = way.wire_dtype(named[0][1].dtype)
        limit = way.clip / route.worker.size**0.5
        self.slots = [Slot(name, parameter, index, wire, limit) for index, (name, parameter) in enumerate(named)]
        self._route = route
        self._worker = route.worker
        self.label = label
        self._crossing = crossing
        self._before, self._op, self._after = scaling.steps(route.worker.size)
        self._order = list(range(len(named)))
        self._observed: list[int] | None = []
        self._flights: list[Flown] = []
        self._behind: list[Handle] = []  # of the round before: streams wait for them, and no host has
        self.complete = True
        """Whether all ranks took part in the round that has landed; the same on all that did."""
        code = wire_dtype(wire)
        self._itemsize = code.itemsize
        layout = lay_out(self._sizes(), self._order, self._itemsize)
        self._memory = ArenaMemory(named[0][1], wire, layout.total, layout.tail)
        self._total = layout.total
        self.coding = Coding(way, layout.tail) if way.is_coded else None
        self.rates: Rates | None = None
        """Learning rates of its parameters; for error feedback."""
        self._specs = [replace(spec, partition_bytes=partition_bytes) for spec in self._named(layout, code)]
        self._memory.follow(route, self.label)
        *declared, signature = route.declare([*self._specs, self._signature()])
        route.push_pull(signature, 0, Op.SUM, Request(parts=range(0), priority=0)).wait()
        self._departed = self._discarded = False
        self._version = 0
        self.longest = 0
        """Partitions of the longest arena beside this one: the last ones of all are equally urgent."""
        self._cut(declared)
        self._memory.allocate(route.worker)
        self._sent = [False] * len(self._starts)
        self._began = False
        self._pending: list[int] = []
        self._place()
        self.reset()

    def _named(self, layout: Layout, code: DType) -> list[TensorSpec]:
        """What it is declared as. The last is the control elements', where gradients are coded or on a device."""
        apart = self.coding is not None or self._memory.device is not None
        body = layout.tail if apart else layout.total
        sizes = pieces(body, self._itemsize) if self._crossing else [body]
        text = "" if self.coding is None else self.coding.way.text(0)
        specs = [
            TensorSpec(f"{self.label}.{n}" if n else self.label, code, (size,), codec=text)
            for n, size in enumerate(sizes)
        ]
        if apart:
            specs.append(TensorSpec(f"{self.label}.control", code, (layout.total - body,)))
        return specs

    def _sizes(self) -> list[int]:
        return [slot.parameter.numel() for slot in self.slots]

    def _signature(self) -> TensorSpec:
        """An empty tensor whose shape is a checksum of all names and shapes: ranks with other models don't match."""
        text = repr([(slot.name, tuple(slot.parameter.shape)) for slot in self.slots])
        shape = (0, len(self.slots), zlib.crc32(text.encode()))
        return TensorSpec(f"{self.label}.(0, parameters, checksum of their names and shapes)", DType.UINT8, shape)

    def _cut(self, declared: Sequence[Declared]) -> None:
        self._is_new = True  # no round has come by
        self._pieces = _pieces(declared)
        if self.coding is not None:
            self.coding.attach(self._worker, self._pieces, self._memory.near)
        self._starts = [piece.offset + part.offset for piece in self._pieces for part in piece.declared.partitions]

    def _place(self) -> None:
        layout = lay_out(self._sizes(), self._order, self._itemsize)
        for slot, offset in zip(self.slots, layout.offsets, strict=True):
            slot.place(self.data, offset)
            begin = offset * self._itemsize
            slot.parts = partitions_of(self._starts, begin, begin + slot.parameter.numel() * self._itemsize)
        if self.coding is not None:
            self.coding.place(self.slots, layout.offsets)
        self._control = self._memory.host[layout.tail : layout.tail + FLAGS * len(self.slots) + CONTROLS]
        self._control_parts = partitions_of(self._starts, layout.tail * self._itemsize, layout.total * self._itemsize)

    def recut(self, route: Route, partition_bytes: int) -> None:
        """Between rounds: goes by `route` from now on, in partitions of `partition_bytes` (0: of the job's size).

        Gradients keep their values. All ranks must make the same calls. Names, and thus keys, are new each time; what
        was held for the old ones is freed. Blocks for one round trip.
        """
        self._catch_up()
        left, before = [piece.declared for piece in self._pieces], self._worker
        if self.coding is not None:
            self.coding.detach(before, self._pieces)
        self._version += 1
        ending = f"/{self._version}"
        specs = [replace(spec, name=spec.name + ending, partition_bytes=partition_bytes) for spec in self._specs]
        moves, self._route, self._worker = route is not self._route, route, route.worker
        self._memory.follow(route, self.label)
        self._cut(route.declare(specs))
        if isinstance(before, Tunable):
            for declared in left:
                before.retire(declared)
        if moves:
            self._memory.move(self._worker)
        self._place()
        for slot in self.slots:
            slot.rebind()
        self.reset()

    def recode(self, rounds: int) -> None:
        """Between rounds, on all ranks alike: the codec that is due after so many, if it is another. See Compress."""
        if self.coding is None or self._specs[0].codec == (text := self.coding.text(rounds)):
            return
        self._specs[:-1] = [replace(spec, codec=text) for spec in self._specs[:-1]]
        self.recut(self._route, self._pieces[0].declared.spec.partition_bytes)

    def switch(self, coded: bool, rounds: int) -> None:
        """Between rounds, on all ranks alike: whether its gradients are encoded, if it has a codec."""
        if self.coding is not None:
            self.coding.switch(coded)
            self.recode(rounds)

    @property
    def data(self) -> torch.Tensor:
        """Where the gradients are, one behind the other."""
        return self._memory.data

    @property
    def device(self) -> Device | None:
        """Where that is; None: in this host's memory."""
        return self._memory.device

    @property
    def windows(self) -> list[range]:
        """Elements of each partition that is encoded."""
        if self.coding is None:
            return []
        ends = [*self._starts[1:], self._total * self._itemsize]
        bounds = [
            (first // self._itemsize, last // self._itemsize) for first, last in zip(self._starts, ends, strict=True)
        ]
        return [range(first, min(last, self.coding.total)) for first, last in bounds if first < self.coding.total]

    @property
    def codec(self) -> str:
        """By which its gradients are encoded in the next round, as TensorSpec has it; "" if they aren't."""
        return self._specs[0].codec

    @property
    def is_coded(self) -> bool:
        """Whether they are."""
        return bool(self.codec)

    def reset(self) -> None:
        """A new round begins; the one before has landed, or has departed."""
        if not self._departed:
            if not self._behind:
                self._follow()
            if self.coding is not None:
                self.coding.clear_gaps(self.data)
                self.coding.landed()
                if self._discarded:
                    self.coding.forget()
        self._discarded = False
        self._began = False
        for slot in self.slots:
            slot.reset()
        if self._observed is not None:
            self._observed = []
        self._forget_flights()
        self._open()

    def _open(self) -> None:
        self._sent = [False] * len(self._starts)
        self._pending = [0] * len(self._starts)
        for parts in [*(slot.parts for slot in self.slots), self._control_parts]:
            for part in parts:
                self._pending[part] += 1

    def _follow(self) -> None:
        """The buffer may be cut in another way from this round on."""
        placed = [self._worker.placed(piece.declared) for piece in self._pieces]
        if any(new is not piece.declared for new, piece in zip(placed, self._pieces, strict=True)):
            self._cut(placed)
            self._place()

    def _catch_up(self) -> None:
        """Before anything is sent or changes: the host waits for the round before, too. Raises what that failed with.

        Its updates are queued on the device then, and the forward behind them, so that the device is not kept waiting.
        """
        behind, self._behind = self._behind, []
        call_all([handle.wait for handle in behind])
        if behind:
            self._follow()
            self._open()

    def calm_down(self) -> None:
        """The host waits, too; errors are for the next round to raise."""
        for handle in self._behind:
            with suppress(BytePSLikeError):
                handle.wait()

    def ready(self, slot: Slot) -> None:
        """The gradient of `slot` is complete on this rank: sends the partitions that were waiting for it only."""
        if self._behind:
            self._catch_up()
        self._memory.follow_stream(self.label)
        slot.stage(self._before)
        self.reached(slot)
        complete = []
        for part in slot.parts:
            self._pending[part] -= 1
            if not self._pending[part]:
                complete.append(part)
        self._send(complete)

    def reached(self, slot: Slot) -> None:
        """Backward has come to the layer of `slot`: that makes the arena's order. The gradient may follow later."""
        if self._observed is not None and slot.index not in self._observed:
            self._observed.append(slot.index)

    def finish(self, discard: bool) -> None:
        """Sends what was not sent yet: gradients that no backward made ready, and the control elements."""
        if self._behind:
            self._catch_up()
        self._discarded = discard
        self._memory.follow_stream(self.label)
        for slot in self.slots:
            if slot.ready:
                continue
            if discard:
                slot.leave()
            else:
                slot.stage(self._before)
        present = [0.0 if discard or slot.parameter.grad is None else 1.0 for slot in self.slots]
        sparse = [float(slot.was_sparse and not discard) for slot in self.slots]
        self._control.copy_(torch.tensor([*present, *sparse, float(discard), 1.0], device="cpu"))
        self._send([part for part, sent in enumerate(self._sent) if not sent])

    def _send(self, parts: Sequence[int]) -> None:
        if not self._began and self.coding is not None and self.rates is not None:
            self.coding.rescale(self._worker, self._pieces, self.slots, self.rates)
        self._began = True
        for piece in self._pieces:
            for run in runs([part for part in self._memory.in_turn(parts, self._sent) if part in piece.parts]):
                if self.coding is not None:
                    self._encoded_next(self.coding, run)
                first = piece.parts.start
                of_piece = range(run.start - first, run.stop - first)
                place = self._memory.place(piece.offset // self._itemsize)
                address = self._memory.host.data_ptr() + piece.offset
                request = Request(0, of_piece, self.priority(run), place)
                self._flights.append((run, self._route.push_pull(piece.declared, address, self._op, request)))
                self._sent[run.start : run.stop] = [True] * len(run)

    def _encoded_next(self, coding: Coding, run: range) -> None:
        begin = self._starts[run.start] // self._itemsize
        end = self._starts[run.stop] // self._itemsize if run.stop < len(self._starts) else coding.total
        if begin < coding.total:
            coding.before(self.data, begin, min(end, coding.total))

    def priority(self, run: range) -> int:
        """Where the next forward waits for its own layers only, those nearest to the input go first: later partitions.

        Where it waits for all, what is ready first goes first, and nothing that is half sent is kept waiting.
        """
        if not self._crossing:
            return 0
        return run.start + max(self.longest - len(self._starts), 0)

    @property
    def remembers(self) -> bool:
        """Whether its gradients are encoded, at some time or always."""
        return self.coding is not None

    def recall(self) -> dict[str, Memory]:
        """Copies of what its codec remembers, by the parameters' names. With no round under way, as below."""
        self.calm_down()
        return {} if self.coding is None else self.coding.recall(self.slots)

    def remember(self, memories: Mapping[str, Memory]) -> None:
        """Takes what is there for its parameters; the rest is left alone."""
        self.calm_down()
        if self.coding is not None:
            self.coding.remember(self.slots, memories)

    def forget(self) -> None:
        """What its codec remembers."""
        self.calm_down()
        if self.coding is not None:
            self.coding.forget()

    @property
    def partitions(self) -> int:
        """How many there are."""
        return len(self._starts)

    def wait(self) -> None:
        """Blocks until all that was sent has landed. Raises the first error, after waiting for all.

        Where streams wait in place of the host, what then fails is raised when the next round begins.
        """
        # In the first round the host waits: kernels are loaded then, for which drivers may wait for all streams.
        host_waits = self.device is None or self._is_new or self._discarded
        blocks = {} if host_waits else {handle: handle.block for _, handle in self._flights if hasattr(handle, "block")}
        self._behind = list(blocks)
        try:
            call_all([blocks.get(handle, handle.wait) for _, handle in self._flights])
        except Exception:
            self._behind = [handle for handle in self._behind if not handle.done()]
            raise
        self._is_new = False

    def depart(self) -> list[Flown]:
        """Instead of `wait`, for a round that is `finish`ed: hands over what is in flight.

        `landed` must be called before any gradient of another round is `ready`.
        """
        flown, self._flights = self._flights, []
        self._departed = True
        return flown

    def landed(self) -> None:
        """The round that departed has landed, and all its gradients were read. Idempotent."""
        if self._departed:
            self._departed = False
            self.reset()

    @property
    def commits(self) -> range:
        """The partitions that the control elements lie in: with them it is known that no rank threw the round away."""
        return self._control_parts

    @property
    def settled(self) -> bool:
        """Whether its layout is final, so that nothing of it has to move after a round."""
        return self._observed is None

    def check_agreed(self) -> None:
        """Raises MismatchError if some ranks threw the round away and others did not."""
        discarding, taking_part = self._control[-CONTROLS:].tolist()
        one = 1.0 / self._worker.size if self._op is Op.AVERAGE else 1.0
        self.complete = taking_part > one * self._worker.size - one / 2
        if 0.0 < discarding < taking_part - one / 2:
            raise MismatchError(
                "some ranks cleared their gradients after backward() while others went on to step() or synchronize();"
                " all ranks must make the same calls in the same order",
                rank=self._worker.rank,
                key=self.label,
            )

    def land(self) -> None:
        """Hands the landed gradients to their parameters."""
        missing = any(slot.parameter.grad is None for slot in self.slots)
        present = self.present() if missing else [True] * len(self.slots)
        for slot in self.slots:
            self.land_one(slot, present[slot.index])

    def present(self) -> list[bool]:
        """Of each slot, whether any rank had a gradient. For a round whose control elements have landed."""
        return [flag > 0.0 for flag in self._control[: len(self.slots)].tolist()]

    def land_one(self, slot: Slot, present: bool) -> None:
        """Hands one landed gradient to its parameter; `present` as told by `present()`."""
        slot.land(present, self._after)

    def sparse(self) -> list[Slot]:
        """Those whose gradients were sparse on any rank; the same on all ranks. For a round that has landed."""
        flags = self._control[len(self.slots) : FLAGS * len(self.slots)]
        return [self.slots[number] for number in flags.nonzero().flatten().tolist()]

    def settle(self) -> None:
        """After the first round that landed: lays the gradients out in the order in which rank 0 made them ready."""
        if self._observed is None:
            return
        missing = set(self._order) - set(self._observed)
        observed = [*self._observed, *(index for index in self._order if index in missing)]
        self._observed = None
        if len(self._starts) > 1:
            self.follow(self._agreed(observed))

    def follow(self, order: list[int]) -> None:
        """The ranks have agreed on an order, maybe while this one had joined; on none if it was rank 0 that had."""
        self._observed = None
        if sorted(order) == list(range(len(self.slots))):
            self._move(order)

    def _agreed(self, order: list[int]) -> list[int]:
        buffer = torch.tensor(order, dtype=torch.int64, device="cpu")
        spec = TensorSpec(f"{self.label}.order", DType.INT64, (len(order),))
        (declared,) = self._route.declare([spec])
        self._route.push_pull(declared, buffer.data_ptr(), Op.BROADCAST).wait()
        return [int(index) for index in buffer]

    def _move(self, order: list[int]) -> None:
        if order == self._order:
            return
        self._order = order
        before = [slot.region.clone() for slot in self.slots]
        self._place()
        for slot, content in zip(self.slots, before, strict=True):
            slot.region.copy_(content)
            slot.rebind()

    def abandon(self) -> None:
        """Forgets the arena. What is still in flight keeps the memory until it has landed."""
        handles = [*self._behind, *(handle for _, handle in self._flights)]
        if self.coding is not None and all(handle.done() for handle in handles):
            with suppress(BytePSLikeError):  # the job has ended
                self.coding.detach(self._worker, self._pieces)
        self._forget_flights()

    def _forget_flights(self) -> None:
        handles = [handle for _, handle in self._flights]
        if not all(handle.done() for handle in handles):
            park(handles, (self._memory.host, self.coding))
        self._flights = []
