"""One contiguous buffer for all gradients of an element type, and the round in which its partitions are reduced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from functools import partial

import torch

from byteps_like.dtypes import DType, Op
from byteps_like.errors import BytePSLikeError
from byteps_like.torch.compression.policy import Compress
from byteps_like.torch.device.api import Device
from byteps_like.torch.device.tensors import wire_dtype
from byteps_like.torch.gradients.bucket import Departed
from byteps_like.torch.gradients.coding import ArenaCoding, Memory
from byteps_like.torch.gradients.controls import Controls
from byteps_like.torch.gradients.memory import ArenaMemory
from byteps_like.torch.gradients.parts import Named, Parts, Piece, Scaling, retire, signature_of, specs_of
from byteps_like.torch.gradients.rescaling import Rescaling
from byteps_like.torch.gradients.sent import ArenaFlights, SentRange
from byteps_like.torch.gradients.slot import Slot, land_all, reset_all, stage_all
from byteps_like.torch.job.routes import Request, Route
from byteps_like.worker.api import Declared, TensorSpec, Worker
from byteps_like.worker.layout import lay_out, runs


class ArenaPhase(Enum):
    """Where its round is: LANDED -> FILLING -> SENT -> LANDED, or SENT -> DEPARTED -> LANDED, or, in place of SENT,
    DISCARDED."""

    LANDED = "the round before is over, and none has begun"
    FILLING = "gradients become ready, and are sent"
    SENT = "all are sent"
    DISCARDED = "all are sent, and this rank throws them away"
    DEPARTED = "all are sent, and somebody else waits for them"


class Arena:
    """The gradients of `named`, all of one element type and `way`, in memory that the network reads and writes.

    The buffer is cut into partitions when its names are declared: one name, or with `crossing`, where the next forward
    waits for its own layers only, several, for finer partitions towards its end (see layout.pieces). A partition is
    sent as soon as all gradients in it are `ready`; `finish` sends the rest. Gradients that are ready are copied to
    their places together, when a partition is complete; on a device each at once, on the stream that has made it.

    At the tail are control elements, reduced with the gradients (Controls). Where gradients are coded, or on a device,
    the control elements are a tensor of their own, which goes raw, from this host's memory. On a device `wait` has the
    current stream wait for the gradients; the host waits for the control elements of the other hosts.

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
        self.slots = [Slot(name, parameter, index, wire) for index, (name, parameter) in enumerate(named)]
        self._route = route
        self._worker = route.worker
        self.label = label
        self._crossing = crossing
        self._clip, self._scaling = way.clip, scaling
        self._terms = scaling.terms(1)
        """Of the round under way, by the view in which it began."""
        self._phase = ArenaPhase.LANDED
        self._order = list(range(len(named)))
        self._observed: dict[int, None] | None = {}
        self._flights = ArenaFlights()
        self.complete = True
        """Whether all ranks took part in the round that has landed; the same on all that did."""
        code = wire_dtype(wire)
        self._itemsize = code.itemsize
        layout = lay_out(self._sizes(), self._order, self._itemsize)
        self._memory = ArenaMemory(named[0][1], wire, layout.total, layout.tail)
        self.coding = ArenaCoding(way, layout.tail) if way.is_coded else None
        self.rescaling = Rescaling()
        apart = self.coding is not None or self._memory.device is not None
        text = "" if self.coding is None else self.coding.way.text(0)
        specs = specs_of(label, code, layout, text, apart, fine=crossing)
        self._specs = [replace(spec, partition_bytes=partition_bytes) for spec in specs]
        self._memory.follow(route, self.label)
        *declared, self._signature = route.declare([*self._specs, signature_of(label, self.slots)])
        route.push_pull(self._signature, 0, Op.SUM, Request(parts=range(0), priority=0)).wait()
        self._version = 0
        self.longest = 0
        """Partitions of the longest arena beside this one: the last ones of all are equally urgent."""
        self._cut(declared)
        self._memory.allocate(route.worker)
        self._sent = [False] * len(self._parts)
        self._waits: list[int] = []
        """Of each partition, how many gradients it has to wait for, and for the control elements; and"""
        self._pending: list[int] = []
        """how many of them still."""
        self._stages_at_once = self._memory.device is not None
        self._arrived: list[Slot] = []
        """Gradients that are ready and not staged, in the order in which they came; and"""
        self._completed: list[int] = []
        """partitions that wait for nothing else."""
        self._present: list[bool] = []
        """Of each gradient, whether this rank has one in the round that is `finish`ed."""
        self._place()
        self.reset()

    def _sizes(self) -> list[int]:
        return [slot.parameter.numel() for slot in self.slots]

    def _cut(self, declared: Sequence[Declared]) -> None:
        self._is_new = True  # no round has come by
        self._parts = Parts(declared)
        if self.coding is not None:
            self.coding.attach(self._worker, self._parts.pieces, self._memory.near)

    def _place(self) -> None:
        layout = lay_out(self._sizes(), self._order, self._itemsize)
        for slot, offset in zip(self.slots, layout.offsets, strict=True):
            slot.place(self.data, offset)
            begin = offset * self._itemsize
            slot.parts = self._parts.of(begin, begin + slot.parameter.numel() * self._itemsize)
        if self.coding is not None:
            self.coding.place(self.slots, layout.offsets)
        self._controls = Controls(self._memory.host[layout.tail :], len(self.slots))
        self._control_parts = self._parts.of(layout.tail * self._itemsize, layout.total * self._itemsize)
        self._waits = [0] * len(self._parts)
        for parts in [*(slot.parts for slot in self.slots), self._control_parts]:
            for part in parts:
                self._waits[part] += 1

    def recut(self, route: Route, partition_bytes: int) -> None:
        """Between rounds: goes by `route` from now on, in partitions of `partition_bytes` (0: of the job's size).

        Gradients keep their values. All ranks must make the same calls. Names, and thus keys, are new each time; what
        was held for the old ones is freed. Blocks for one round trip.
        """
        self._catch_up()
        left, before = [piece.declared for piece in self._parts.pieces], self._worker
        if self.coding is not None:
            self.coding.detach(before, self._parts.pieces)
        self._version += 1
        ending = f"/{self._version}"
        specs = [replace(spec, name=spec.name + ending, partition_bytes=partition_bytes) for spec in self._specs]
        moves, self._route, self._worker = route is not self._route, route, route.worker
        self._memory.follow(route, self.label)
        self._cut(route.declare(specs))
        retire(before, left)
        if moves:
            self._memory.move(self._worker)
        self._place()
        self.reset()

    def recode(self, rounds: int) -> None:
        """Between rounds, on all ranks alike: the codec that is due after so many, if it is another. See Compress."""
        if self.coding is None or self._specs[0].codec == (text := self.coding.text(rounds)):
            return
        self._specs[:-1] = [replace(spec, codec=text) for spec in self._specs[:-1]]
        self.recut(self._route, self._parts.pieces[0].declared.spec.partition_bytes)

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
        return [] if self.coding is None else self._parts.windows(self.coding.total)

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
        if self._phase is not ArenaPhase.DEPARTED:
            self._end()
        reset_all(self.slots)
        if self._observed is not None:
            self._observed = {}
        self._forget_flights()
        self._open()

    def _end(self) -> None:
        # By another rank, too: what was sent is applied nowhere.
        discarded = self._phase is ArenaPhase.DISCARDED or (self._phase is ArenaPhase.SENT and self.discarded)
        self._phase = ArenaPhase.LANDED
        self._flights.arrived()
        if not self._flights.is_behind:
            self._follow()
        if self.coding is not None:
            self.coding.clear_gaps(self.data)
            self.coding.landed(self.present, 1.0 if self._terms.op is Op.AVERAGE else 1.0 / self._terms.size)
            if discarded:
                self.coding.forget()

    def _open(self) -> None:
        self._sent = [False] * len(self._parts)
        self._pending = list(self._waits)
        self._arrived, self._completed = [], []

    def _enter(self) -> None:
        """A round begins, if none has: over as many ranks as the view in force has."""
        assert self._phase is not ArenaPhase.DEPARTED, f"{self.label}: `landed` was not called"
        if self._phase is not ArenaPhase.LANDED:
            return
        self._phase, self._terms = ArenaPhase.FILLING, self._scaling.terms(self._worker.size)
        if self._clip:
            for slot in self.slots:
                slot.limit = self._clip / self._terms.size**0.5
        if self.coding is not None:
            self.coding.forget_gaps()  # here, since nothing encodes any more
            self._rescale(self.coding.rescale(self.slots, self.rescaling))

    def _follow(self) -> None:
        """The buffer may be cut in another way from this round on."""
        placed = [self._worker.placed(piece.declared) for piece in self._parts.pieces]
        if any(new is not piece.declared for new, piece in zip(placed, self._parts.pieces, strict=True)):
            self._cut(placed)
            self._place()

    def _catch_up(self) -> None:
        """Before anything is sent or changes: the host waits for the round before, too. Raises what that failed with.

        Its updates are queued on the device then, and the forward behind them, so that the device is not kept waiting.
        """
        if self._flights.is_behind:
            self._flights.catch_up()
            self._follow()
            self._open()

    def calm_down(self) -> None:
        """The host waits, too; errors are for the next round to raise."""
        self._flights.calm_down()

    def ready(self, slot: Slot) -> None:
        """The gradient of `slot` is complete on this rank: sends the partitions that were waiting for it only."""
        if self._stages_at_once or self._phase is not ArenaPhase.FILLING:
            self._catch_up()
            self._enter()
            self._memory.follow_stream(self.label)
        slot.ready = True
        self._arrived.append(slot)
        for part in slot.parts:
            self._pending[part] -= 1
            if not self._pending[part]:
                self._completed.append(part)
        if self._stages_at_once or self._completed:
            completed, self._completed = self._completed, []
            with torch.no_grad():
                self._stage(self._take())
            self._send(completed)

    def _take(self) -> list[Slot]:
        """Those that are ready and not staged."""
        slots, self._arrived = self._arrived, []
        for slot in slots if self._observed is not None else ():
            self.reached(slot)
        return slots

    def _stage(self, slots: Sequence[Slot]) -> None:
        stage_all(slots, self._terms.before)
        if self.coding is not None:
            for slot in slots:
                if slot.bound is None:
                    self.coding.keep(slot, self.coding.way.two_way and self.is_coded)

    def reached(self, slot: Slot) -> None:
        """Backward has come to the layer of `slot`: that makes the arena's order. The gradient may follow later."""
        if self._observed is not None:
            self._observed.setdefault(slot.index)

    def finish(self, discard: bool) -> None:
        """Sends what was not sent yet: gradients that no backward made ready, and the control elements."""
        self._catch_up()
        self._enter()
        self._phase = ArenaPhase.DISCARDED if discard else ArenaPhase.SENT
        self._memory.follow_stream(self.label)
        left = [*self._take(), *(slot for slot in self.slots if not slot.ready)]
        if discard:
            for slot in left:
                slot.leave()
        else:
            self._stage(left)
        self._present = [slot.parameter.grad is not None and not discard for slot in self.slots]
        self._controls.fill(self._present, [slot.was_sparse and not discard for slot in self.slots], discard)
        self._send([part for part, sent in enumerate(self._sent) if not sent])

    def foretell(self, present: Sequence[bool]) -> None:
        """A round begins that this rank won't throw away, with the gradients that are `present`, none of them sparse.

        Instead of `finish`: each partition is sent as soon as its gradients are `ready`, with control elements or not.
        What is in flight is to be taken by `hand_over`.
        """
        self._catch_up()
        self._enter()
        self._controls.fill(present, [False] * len(present), discard=False)
        for part in self._control_parts:
            self._pending[part] -= 1
        self._send([part for part, pending in enumerate(self._pending) if not pending])

    def _send(self, parts: Sequence[int]) -> None:
        for piece in self._parts.pieces:
            for run in runs([part for part in self._memory.in_turn(parts, self._sent) if part in piece.parts]):
                if self.coding is not None:
                    self._encoded_next(self.coding, run)
                first = piece.parts.start
                of_piece = range(run.start - first, run.stop - first)
                place = self._memory.place(piece.offset // self._itemsize)
                address = self._memory.host.data_ptr() + piece.offset
                request = Request(0, of_piece, self.priority(run), place)
                self._flights.add(run, self._route.push_pull(piece.declared, address, self._terms.op, request))
                self._sent[run.start : run.stop] = [True] * len(run)

    def _rescale(self, factor: float) -> None:
        for piece in self._parts.pieces if factor != 1.0 else ():
            if piece.declared.spec.codec:
                self._worker.rescale(piece.declared, factor)

    def _encoded_next(self, coding: ArenaCoding, run: range) -> None:
        span = self._parts.elements(run, coding.total)
        if span:
            coding.before(self.data[span.start : span.stop], span.start)

    def priority(self, run: range) -> int:
        """Where the next forward waits for its own layers only, those nearest to the input go first: later partitions.

        Where it waits for all, what is ready first goes first, and nothing that is half sent is kept waiting.
        """
        if not self._crossing:
            return 0
        return run.start + max(self.longest - len(self._parts), 0)

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
        return len(self._parts)

    def wait(self) -> None:
        """Blocks until all that was sent has landed. Raises the first error, after waiting for all.

        Where streams wait in place of the host, what then fails is raised when the next round begins.
        """
        # In the first round the host waits: kernels are loaded then, for which drivers may wait for all streams.
        # In one that is thrown away, or has no gradient for some parameter, what codecs remember changes after it.
        changes = self._phase is ArenaPhase.DISCARDED or (self.coding is not None and self.coding.has_kept)
        self._flights.wait(host=self.device is None or self._is_new or changes)
        self._is_new = False

    def depart(self) -> Departed:
        """Instead of `wait`, for a round that is `finish`ed: hands over what is in flight.

        `landed` must be called before any gradient of another round is `ready`.
        """
        assert self._phase is ArenaPhase.SENT, f"{self.label}: {self._phase.value}"
        self._phase = ArenaPhase.DEPARTED
        return Departed(self, self.hand_over())

    def hand_over(self) -> list[SentRange]:
        """What is in flight, and was not handed over yet: whoever takes it waits for it. `reset` must come after."""
        return self._flights.hand_over()

    def landed(self) -> None:
        """The round that departed has landed, and all its gradients were read. Idempotent."""
        if self._phase is ArenaPhase.DEPARTED:
            self._phase = ArenaPhase.SENT
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
        average = self._terms.op is Op.AVERAGE
        self.complete = self._controls.check(average, self._terms.size, self._worker.rank, self.label)

    def land(self) -> None:
        """Hands the landed gradients to their parameters."""
        landed: Sequence[Slot] = self.slots
        if not all(self._present):
            present = self.present()
            landed = [slot for slot in landed if present[slot.index] or slot.parameter.grad is not None]
        land_all(landed, self._terms.after)

    def present(self) -> list[bool]:
        """Of each slot, whether any rank had a gradient. For a round whose control elements have landed."""
        return self._controls.present()

    @property
    def discarded(self) -> bool:
        """Whether any rank threw the round away. For one whose control elements have landed."""
        return self._controls.discarded

    def land_one(self, slot: Slot, present: bool) -> None:
        """Hands one landed gradient to its parameter; `present` as told by `present()`."""
        slot.land(present, self._terms.after)

    def sparse(self) -> list[Slot]:
        """Those whose gradients were sparse on any rank; the same on all ranks. For a round that has landed."""
        return [self.slots[number] for number in self._controls.sparse()]

    def settle(self) -> None:
        """After the first round that landed: lays the gradients out in the order in which rank 0 made them ready."""
        if self._observed is None:
            return
        observed = list({**self._observed, **dict.fromkeys(self._order)})
        self._observed = None
        if len(self._parts) > 1:
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
        retire(self._worker, [declared])
        return [int(index) for index in buffer]

    def _move(self, order: list[int]) -> None:
        if order == self._order:
            return
        self._order = order
        before = [slot.region.clone() for slot in self.slots]
        self._place()
        for slot, content in zip(self.slots, before, strict=True):
            slot.region.copy_(content)

    def abandon(self) -> None:
        """Forgets the arena, whose names are not used again: what is held for them is freed, once what is still in
        flight has landed. Until then that keeps the memory."""
        then = partial(_leave, self._worker, self.coding, self._parts.pieces, self._signature)
        self._flights.forget((self._memory.host, self.coding), then)

    def _forget_flights(self) -> None:
        self._flights.forget((self._memory.host, self.coding))


def _leave(worker: Worker, coding: ArenaCoding | None, pieces: Sequence[Piece], signature: Declared) -> None:
    with suppress(BytePSLikeError):  # the job has ended
        if coding is not None:
            coding.detach(worker, pieces)
        retire(worker, [*(piece.declared for piece in pieces), signature])
