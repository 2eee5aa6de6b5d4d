"""What codecs do to gradients while training runs: looked at now and then, and ended before the loss suffers.

Every so many rounds a sample of one partition of each arena is copied when it is sent, and encoded once more beside the
round; sums over all ranks give NMSE, share of clamped elements, and the residual's norm by the gradient's, so that all
ranks see the same and decide alike. Two looks in a row that find too much (see compression.figures), the second one in
the round after, and the arena's gradients go raw for good.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from byteps_like.compression.feedback import Compensation
from byteps_like.dtypes import DType, Op
from byteps_like.torch.adapt.tuning import Tuning
from byteps_like.torch.gradients.bucket import Coded
from byteps_like.torch.gradients.coding import MOMENTUM, RESIDUAL, CodedSample
from byteps_like.torch.job.routes import Request, Route
from byteps_like.torch.reduction.api import Reducer
from byteps_like.worker.api import TWOWAY, TensorSpec

if TYPE_CHECKING:
    from byteps_like.compression.figures import Encoding, Figures, Usual
    from byteps_like.torch.reduction.api import Adaptable

logger = logging.getLogger(__name__)

SAMPLE = 1 << 15
"""Elements: THC's largest rotation."""
_URGENT = 1 << 30  # priority: everybody waits for it


@dataclass(frozen=True)
class CodecReport:
    """How the gradients of `parameters` travel that have `codec`."""

    parameters: tuple[str, ...]
    codec: str
    raw: str
    """Why they are not encoded; "": they are."""
    figures: Figures | None
    """Of the last look at them; the same on all ranks."""

    def __str__(self) -> str:
        some = ", ".join(self.parameters[:3]) + (", ..." if len(self.parameters) > 3 else "")
        seen = self.figures
        told = f"NMSE {seen.nmse:.3g}, clamped {seen.clamp:.2%}, residual {seen.ratio:.3g}" if seen else "not looked at"
        how = f"raw: {self.raw}" if self.raw else "encoded"
        return f"{len(self.parameters)} gradients ({some}): {self.codec}, {how}; {told}"


@dataclass
class _Watched:
    """An arena, and what was seen of it."""

    arena: Coded
    window: range
    seen: list[Figures]
    suspected: bool = False


class Watching:
    """Looks at the codecs of `reducer` every so many rounds. See Watcher for the calls."""

    def __init__(self, reducer: Adaptable, every: int) -> None:
        self._every = every
        self._reference = weakref.ref(reducer)  # which holds this
        self._begin(reducer)
        reducer.watchers.add(self)

    def _begin(self, reducer: Adaptable) -> None:
        self._runtime = reducer.runtime
        self._generation = self._runtime.generation
        self._left = self._every
        self._looks = 0
        self._known: dict[str, _Watched] = {}
        self._armed: list[_Watched] = []
        self._arm(reducer)

    @property
    def waits(self) -> bool:
        """See Watcher."""
        return self._left == 1 or self._runtime.generation != self._generation

    def after_round(self) -> None:
        """See Watcher. Rounds in which some rank took no part (it has joined) aren't counted.

        Where the barrier is crossed a rank may count one before it knows; so all begin anew once all have joined.
        """
        reducer = self._reference()
        if reducer is None:
            return
        if reducer.runtime is not self._runtime:
            self._begin(reducer)
        if not reducer.complete:
            return
        if self._runtime.generation != self._generation:
            self._generation, self._left = self._runtime.generation, self._every
        else:
            self._left -= 1
        if self._left == 0:
            self._left = 1 if self._look(reducer) else self._every
            self._looks += 1
        self._arm(reducer)

    def figures(self, arena: Coded) -> Figures | None:
        """Those of the last look at it."""
        known = self._known.get(arena.label)
        return known.seen[-1] if known and known.arena is arena and known.seen else None

    def _arm(self, reducer: Adaptable) -> None:
        """Has samples taken in the next round, if it is time: another partition each time, but of suspects."""
        if self._left != 1:
            return
        self._armed = []
        self._known = {label: item for label, item in self._known.items() if item.arena in reducer.codecs.buckets}
        for arena in reducer.codecs.buckets:
            if arena.coding is None or not arena.is_coded:
                continue
            known = self._known.get(arena.label)
            if known is None or known.arena is not arena:
                known = self._known[arena.label] = _Watched(arena, range(0), [])
            if not known.suspected:
                part = arena.windows[self._looks % len(arena.windows)]
                known.window = part[:SAMPLE]
            arena.coding.wanted, arena.coding.sample = known.window, None
            self._armed.append(known)

    def _look(self, reducer: Adaptable) -> bool:
        """Whether there is a suspect, who is looked at again at once. Collective."""
        armed = [item for item in self._armed if item.arena.is_coded]
        if not armed:
            return False
        for item, (figures, like) in zip(armed, _exchange(reducer, armed, self._looks), strict=True):
            self._judge(reducer, item, figures, like)
        self._publish(reducer)
        return any(item.suspected for item in armed)

    def _judge(self, reducer: Adaptable, item: _Watched, figures: Figures, like: Usual) -> None:
        from byteps_like.compression.figures import RISES, alarm

        coding = item.arena.coding
        assert coding is not None
        item.suspected, before = False, item.suspected
        if figures.broken or not figures.elements:
            return
        item.seen = [*item.seen[-RISES:], figures]
        found = alarm(item.seen, like, bool(coding.way.feedback))
        if found and (before or figures.lost):
            self._fall_back(reducer, item.arena, found)
        else:
            item.suspected = bool(found)

    def _fall_back(self, reducer: Adaptable, arena: Coded, found: str) -> None:
        names, codec = [slot.name for slot in arena.slots], arena.codec
        assert arena.coding is not None
        arena.coding.fallen = found
        arena.switch(False, reducer.codecs.rounds)
        if reducer.route.worker.rank == 0:
            logger.warning(
                "%s: codec %s of %d gradients (%s, ...): %s; they are sent uncompressed from now on. Choose a codec of"
                " less error (int8, bf16) for them, or set compression_monitor=0 to keep this codec",
                reducer.label, codec, len(names), ", ".join(names[:3]), found,
            )  # fmt: skip

    def _publish(self, reducer: Adaptable) -> None:
        seen = [item.seen[-1] for item in self._known.values() if item.seen]
        self._runtime.gauges[reducer.label] = {
            "compression_nmse": max((one.nmse for one in seen), default=0.0),
            "compression_clamped": max((one.clamp for one in seen), default=0.0),
            "compression_residual": max((one.ratio for one in seen), default=0.0),
            "compression_raw": float(
                sum(not arena.is_coded for arena in reducer.codecs.buckets if arena.coding is not None)
            ),
        }


def _exchange(reducer: Adaptable, items: Sequence[_Watched], look: int) -> list[tuple[Figures, Usual]]:
    """The figures of all ranks together, and what rank 0 finds usual, since machines differ in the last bits of exp;
    first they agree on preludes."""
    from byteps_like.compression.figures import COUNT, Figures, Usual, usual

    route = reducer.route
    encodings = _encodings(route, items, look)
    sums = torch.zeros(len(items), COUNT + len(fields(Usual)), dtype=torch.float64, device="cpu")
    for number, (item, encoding) in enumerate(zip(items, encodings, strict=True)):
        assert item.arena.coding is not None
        sample, item.arena.coding.sample, item.arena.coding.wanted = item.arena.coding.sample, None, None
        if sample is not None:
            x, gradient, residual = _made_up(item.arena, sample)
            own = encoding.figures(x, gradient, residual).numbers()
            sums[number, :COUNT] = torch.tensor(own, dtype=torch.float64, device="cpu")
        if route.worker.rank == 0:
            like = usual(item.arena.codec.removeprefix(TWOWAY), route.worker.size, len(item.window))
            sums[number, COUNT:] = torch.tensor(astuple(like), dtype=torch.float64, device="cpu")
    (declared,) = route.declare([TensorSpec(f"{reducer.label}.watch.{len(items)}", DType.FLOAT64, tuple(sums.shape))])
    route.push_pull(declared, sums.data_ptr(), Op.SUM, Request(priority=_URGENT)).wait()
    return [(Figures(*row[:COUNT]), Usual(*row[COUNT:])) for row in sums.tolist()]


def _encodings(route: Route, items: Sequence[_Watched], look: int) -> list[Encoding]:
    import byteps_like._core as _core
    from byteps_like.compression.figures import Encoding

    found, flights = [], []
    for number, item in enumerate(items):
        assert item.arena.coding is not None
        codec = _core.Codec(item.arena.codec.removeprefix(TWOWAY), route.worker.size)
        plan, draw = codec.plan(len(item.window)), (number, look, route.worker.rank)
        encoding = Encoding(codec, draw, np.zeros(plan["prelude"], np.uint8))
        if plan["prelude"]:
            if item.arena.coding.sample is not None:
                encoding = Encoding.alone(codec, _made_up(item.arena, item.arena.coding.sample)[0], draw)
            dtype = DType(plan["prelude_dtype"])
            count = plan["prelude"] // dtype.itemsize
            (declared,) = route.declare([TensorSpec(f"{item.arena.label}.watch.{dtype.name}.{count}", dtype, (count,))])
            how = Request(priority=_URGENT)
            flights.append(route.push_pull(declared, encoding.agreed.ctypes.data, Op(plan["prelude_op"]), how))
        found.append(encoding)
    for flight in flights:
        flight.wait()
    return found


def _made_up(arena: Coded, sample: CodedSample) -> tuple[Any, Any, Any]:
    """What was encoded, and what it was made of: the gradient with its momentum, and the residual."""
    assert arena.coding is not None
    way, gradient = arena.coding.way, sample.gradient.cpu().numpy().copy()
    residual = sample.memory[RESIDUAL].cpu().numpy() if RESIDUAL in sample.memory else None
    if MOMENTUM in sample.memory:
        momentum = sample.memory[MOMENTUM].cpu().numpy().copy()
        Compensation(None, momentum, way.momentum, way.nesterov).before(gradient)
    return gradient if residual is None else gradient + residual, gradient, residual


def watch(reducer: Adaptable, every: int) -> None:
    """Watches its codecs, if it has any that can be left out, in this world or another."""
    if every and reducer.codecs.may_encode:
        Watching(reducer, every)


def report(reducer: Reducer) -> list[CodecReport]:
    """Of each arena that has a codec of the registry."""
    watching = reducer.watchers.of(Watching)
    timed = any(isinstance(one, Tuning) and not one.done for one in reducer.watchers)
    slower, found = "timed without it now" if timed else "steps are faster without it", []
    for arena in reducer.codecs.buckets:
        if arena.coding is not None:
            raw = "" if arena.is_coded or not arena.coding.off else arena.coding.fallen or slower
            seen = watching.figures(arena) if watching is not None else None
            found.append(CodecReport(tuple(slot.name for slot in arena.slots), arena.coding.way.name, raw, seen))
    return found
