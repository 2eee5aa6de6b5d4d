"""Gradients reduced while backward runs: hooks, arenas and rounds, for DistributedOptimizer and DDP alike."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakIdKeyDictionary

from byteps_like.errors import InvalidArgumentError
from byteps_like.timeline.recorder import recorder
from byteps_like.torch.compression.policy import RAW, Compress
from byteps_like.torch.compression.rules import Rules
from byteps_like.torch.device import devices
from byteps_like.torch.device.api import Device
from byteps_like.torch.gradients.arena import Arena
from byteps_like.torch.gradients.coding import Memory
from byteps_like.torch.gradients.low_rank import LowRankArena
from byteps_like.torch.gradients.parts import Named, Scaling
from byteps_like.torch.gradients.rescaling import Rates
from byteps_like.torch.gradients.round_hooks import Watchers
from byteps_like.torch.gradients.selecting import selected
from byteps_like.torch.gradients.sent import Flown
from byteps_like.torch.gradients.slot import Slot, changed_in_flight, too_many_passes
from byteps_like.torch.gradients.sparse import SparseGradients
from byteps_like.torch.job import runtime as _runtime
from byteps_like.torch.job.routes import Route
from byteps_like.torch.job.tracing import follow_recorder

LOOK_EVERY = 8
"""Rounds from one count of the rows in dense gradients to the next."""


@dataclass(frozen=True)
class ReducerOptions:
    """How gradients travel and are summed: which `route` (see routes.ROUTES), over which ranks.

    `crossing`: the next forward waits for its own layers only, so those nearest to the input go first (see Arena).
    Sparse ones travel by their rows (sparse), beside the arenas; but as dense ones with `sparse_as_dense`, to be made
    sparse again (but in steps that cross the barrier), and, with a warning, over servers in steps that cross the
    barrier, and where there are no collectives (portable workers).
    """

    rules: Rules = field(default_factory=Rules)
    scaling: Scaling = field(default_factory=Scaling)
    route: str = "auto"
    process_set: object = None
    sparse_as_dense: bool = False
    crossing: bool = False
    transform: Callable[[Arena, Slot], None] | None = None
    """What is made of a gradient before it is sent (see onebit_adam)."""


_owners: Any = WeakIdKeyDictionary()


def note_reached(parameter: torch.Tensor) -> None:
    """Backward has come to the layer of `parameter`, whose gradient will be made later (see deferred_layer).

    Tells whoever reduces it, if anybody, so that the arena's order is that of the layers all the same.
    """
    reference = _owners.get(parameter, None)
    reducer = reference() if reference is not None else None
    arena, slot = reducer._slots.get(id(parameter), (None, None)) if reducer is not None else (None, None)
    if arena is not None:
        arena.reached(slot)


class GradientReducer:
    """Reduces the gradients of the parameters that `source` lists, over all ranks.

    A round begins with the first backward and ends with `synchronize`; in between, the `passes_per_step`-th backward
    that reaches a parameter makes its gradient ready, and complete partitions are sent from within backward.

    Parameters may come and go in `source`, and be frozen or not: new ones get an arena of their own when they are
    first seen, and all arenas are rebuilt when some have gone. Every rank must see the same changes between the same
    calls. Holds no reference to what owns it; `close`, or its deletion, removes the hooks.
    """

    on_host_only = ""
    """Why it can't reduce gradients on a device; "": it can."""

    def __init__(self, source: Callable[[], Iterable[Named]], options: ReducerOptions) -> None:
        self.passes_per_step = 1
        self.paused = False
        self.gathers = False
        """Whether gradients that come sparse leave the arenas, and"""
        self.by_rows = False
        """those that touch few rows, if they are to."""
        self.on_first: Callable[[], None] | None = None
        self.on_gradient: Callable[[torch.Tensor], None] | None = None
        self.tuning: Any = None
        self.probing: Any = None
        self.watching: Any = None
        self.watchers = Watchers()
        self._coded = True
        self.selects = False
        """Whether some gradients are encoded because compression="auto" has found that to be faster."""
        self.rates: Rates | None = None
        """Learning rates of parameters, by which what codecs have left out is rescaled."""
        self.rounds = 0
        """How many all ranks took part in: ranks that have joined don't count them, nor do the others then."""
        self._left: dict[str, Memory] = {}
        self._source = source
        self._options = options
        self._arenas: list[Arena] = []
        self._slots: dict[int, tuple[Arena, Slot]] = {}
        self._hooks: dict[int, RemovableHandle] = {}
        self._candidates: dict[int, Named] = {}
        self._start()
        self.refresh()

    def _start(self) -> None:
        self._runtime = _runtime.current()
        scope = self._runtime.scope(self._options.process_set)
        wanted = self._options.route
        self.route = scope.route if scope.number else self._runtime.route_for(wanted)
        if scope.number and wanted == "server":
            raise InvalidArgumentError("route='server': servers sum over all ranks, not over a process set")
        self.label = f"gradients.{self._runtime.count(f'{scope.prefix}gradients')}"
        self._generation = 0
        self._candidates = {}
        self._partition_bytes = 0
        self._coded, self.selects = True, False
        self.by_rows = able = self._runtime.has_collectives
        waits = self.route.name != "server" or not self._options.crossing
        self.gathers = not self._options.sparse_as_dense and able and waits
        self._sparse = SparseGradients(self.label, self._options.scaling.op, self._options.process_set)
        self.route.report(self.label)

    # Membership

    def refresh(self) -> None:
        """Looks at the parameters again. New ones join at once; old ones leave when no round is under way."""
        if recorder.changed:
            follow_recorder()
        if self._runtime.closed:
            self._left.update(self.recall())
            self._drop()
            self._start()
        if self._sparse or self._candidates:
            present = {id(parameter) for _, parameter in self._source()}
            self._sparse.keep(present)
            self._candidates = {number: item for number, item in self._candidates.items() if number in present}
        added, kept = [], 0
        for name, parameter in self._dense():
            entry = self._slots.get(id(parameter))
            if entry is None or not entry[1].fits(parameter):
                added.extend([(name, parameter)] if parameter.requires_grad else [])
            else:
                kept += 1
                self._hook(parameter)
        if kept < sum(len(arena.slots) for arena in self._arenas) and not self.active:
            known = [item for item in self._dense() if item[1].requires_grad or id(item[1]) in self._slots]
            self._left.update(self.recall())
            self._drop()
            added = known
        if added:
            self._add(added)
        for parameter in self._sparse.parameters():
            self._hook(parameter)

    def _dense(self) -> Iterable[Named]:
        """The parameters whose gradients go through arenas."""
        return [item for item in self._source() if item[1] not in self._sparse] if self._sparse else self._source()

    def _add(self, named: list[Named]) -> None:
        groups: dict[tuple[torch.dtype, Device | None, Compress], list[Named]] = {}
        for name, parameter in reversed(named):
            way = self._options.rules.of(name, parameter)
            self._claim(name, parameter, way)
            groups.setdefault((parameter.dtype, devices.of(parameter), way), []).append((name, parameter))
            if way.by_rows and self.by_rows:
                self._candidates[id(parameter)] = (name, parameter)
        used: set[str] = set()
        for number, ((dtype, _, way), group) in enumerate(groups.items()):
            label = f"{self.label}.{self._generation}.{str(dtype).removeprefix('torch.')}"
            label += f".{number}" if label in used and not way.name else ""  # on another device
            used.add(label)
            self._adopt(self._make_arena(f"{label}.{number}.{way.name}" if way.name else label, group, way))
        self._generation += 1
        self._level()

    def _make_arena(self, label: str, named: list[Named], way: Compress) -> Any:
        arena: Any
        size = 0
        if way.auto is not None:
            way, size = selected(self._runtime, self.route, self.label, way, [item for _, item in named])
            self.selects = self.selects or way.is_coded
        if way.low_rank is None:
            arena = Arena(self.route, label, named, way, self._options.scaling, self._options.crossing, size)
        else:
            arena = LowRankArena(self.route, label, named, way, self._options.scaling)
            self._runtime.arenas.update((part.label, part) for part in arena.parts)
        arena.rates = self.rates
        arena.remember(self._left)
        arena.recode(self.rounds)
        arena.switch(self._coded, self.rounds)
        if self._partition_bytes:
            arena.recut(self.route, self._partition_bytes)
        transform = self._options.transform
        if transform is not None:
            for slot in arena.slots:
                slot.transform = partial(transform, arena)
        return arena

    def _adopt(self, arena: Arena) -> None:
        for slot in arena.slots:
            slot.warns_sparse = not (self._options.sparse_as_dense or self.gathers)
        self._arenas.append(arena)
        self._runtime.arenas[arena.label] = arena
        self._slots.update((id(slot.parameter), (arena, slot)) for slot in arena.slots)
        for slot in arena.slots:
            self._hook(slot.parameter)

    def _level(self) -> None:
        longest = max((arena.partitions for arena in self._arenas), default=0)
        for arena in self._arenas:
            arena.longest = longest

    def _claim(self, name: str, parameter: torch.Tensor, way: Compress = RAW) -> None:
        if not parameter.is_leaf or parameter.is_meta:
            raise InvalidArgumentError(f"parameter {name!r} on {parameter.device} must be a leaf tensor with memory")
        why = self.on_host_only or ("PowerSGD's factors are computed there" if way.low_rank else "")
        if why and devices.of(parameter) is not None:
            raise InvalidArgumentError(f"parameter {name!r} on {parameter.device} must be on the CPU: {why}")
        reference = _owners.get(parameter, None)
        owner = reference() if reference is not None else None
        if owner is not None and owner is not self and not owner.closed:
            raise InvalidArgumentError(
                f"the gradient of {name!r} is reduced by another DistributedOptimizer or DistributedDataParallel"
                " already; use one of them, or close() the other first"
            )
        _owners[parameter] = weakref.ref(self)

    def _hook(self, parameter: torch.Tensor) -> None:
        if id(parameter) in self._hooks or not parameter.requires_grad:
            return
        reference = weakref.ref(self)

        def accumulated(tensor: torch.Tensor) -> None:
            reducer = reference()
            if reducer is not None:
                with torch.no_grad():
                    reducer._accumulated(tensor)

        register: Any = parameter.register_post_accumulate_grad_hook
        self._hooks[id(parameter)] = register(accumulated)

    def _drop(self) -> None:
        for handle in self._hooks.values():
            handle.remove()
        self._hooks.clear()
        for arena in self._arenas:
            arena.abandon()
        self._arenas.clear()
        self._slots.clear()

    @property
    def closed(self) -> bool:
        """Whether it reduces nothing any more: closed, or left behind by a shutdown of its runtime."""
        return not (self._slots or self._sparse) or self._runtime.closed

    def close(self) -> None:
        """Removes the hooks and forgets the arenas; gradients stay where they are. Idempotent."""
        self._drop()
        self._sparse.keep(())
        self._source = tuple

    def __del__(self) -> None:
        self._drop()

    # Rounds

    @property
    def runtime(self) -> _runtime.Runtime:
        """The membership that it reduces by."""
        return self._runtime

    @property
    def free(self) -> bool:
        """Whether nobody has said which way gradients go."""
        return self._options.route == "auto" and self._options.process_set is None

    @property
    def partition_bytes(self) -> int:
        """Of its arenas."""
        return self._partition_bytes or self._runtime.partition_bytes

    @property
    def complete(self) -> bool:
        """Whether all ranks took part in the round that has landed: none has joined."""
        return all(arena.complete for arena in self._arenas)

    def recut(self, route: Route, partition_bytes: int) -> None:
        """Between rounds, on all ranks alike: see Arena.recut. Holds for arenas to come, too."""
        with torch.no_grad():
            for arena in self._arenas:
                arena.recut(route, partition_bytes)
        self._level()
        self.route, self._partition_bytes = route, partition_bytes
        self._sparse.partition_bytes = partition_bytes

    def note(self, flight: object) -> None:
        """`flight` (a Flight) is to be finished before this process leaves the job."""
        self._runtime.flights.add(flight)

    @property
    def sparse(self) -> list[str]:
        """Names of the gradients that travel by rows; the same on all ranks after a round."""
        return self._sparse.names()

    @property
    def active(self) -> bool:
        """Whether a round is under way: at least one gradient was made ready."""
        return any(slot.ready for _, slot in self._slots.values())

    @property
    def touched(self) -> bool:
        """Whether a backward has reached any parameter since the last round."""
        return self._sparse.touched or any(slot.passes or slot.ready for _, slot in self._slots.values())

    def _accumulated(self, parameter: torch.Tensor) -> None:
        if self.paused:
            return
        if self._runtime.closed:
            self.refresh()
        if self.on_first is not None:
            self.on_first()
        if self.on_gradient is not None:
            self.on_gradient(parameter)
        if parameter in self._sparse:
            self._sparse.touched = True
            return
        arena, slot = self._slots[id(parameter)]
        if slot.ready:
            self._repeated(slot)
        slot.count()
        if slot.passes >= self.passes_per_step:
            arena.ready(slot)

    def _repeated(self, slot: Slot) -> None:
        """A gradient that was sent already is there again: right only if all that were sent have been cleared."""
        if not all(other.cleared() for _, other in self._slots.values() if other.ready):
            raise too_many_passes(slot, self.passes_per_step)
        self.discard()

    def synchronize(self) -> None:
        """Ends the round: sends what is missing, blocks until all has landed and makes it every `p.grad`.

        A parameter whose `p.grad` is None on all ranks keeps None; one that has none on some ranks counts as zeros
        there. Raises InvalidArgumentError if a gradient was changed after it was sent, MismatchError if other ranks
        cleared theirs instead, and the job's error.
        """
        with torch.no_grad():
            self.refresh()
            self._round(discard=False)
            if self._candidates and self.complete:
                self._reroute()
            self.recode(self.rounds + self.complete)
            self.refresh()
            self.watchers.tell()

    def _reroute(self) -> None:
        """Between rounds, on all ranks alike: to rows where they have become few, and back. Looks now and then."""
        self._sparse.leave()
        for name, parameter in self._candidates.values() if self.rounds % LOOK_EVERY == 0 else ():
            if parameter not in self._sparse:
                self._sparse.take(name, parameter)

    # What codecs remember

    def take_rates(self, rates: Rates) -> None:
        """From now on residuals are rescaled when learning rates change."""
        self.rates = rates
        for arena in self.coded:
            arena.rates = rates

    @property
    def coded(self) -> list[Arena]:
        """The arenas whose gradients are encoded, at some time or always."""
        return [arena for arena in self._arenas if arena.remembers]

    @property
    def may_encode(self) -> bool:
        """Whether some gradients have, or may get, a codec that can be left out: none that a transform counts on."""
        return self._options.transform is None and (self._options.rules.codecs or bool(self.coded))

    @property
    def switchable(self) -> bool:
        """Whether some have it now. PowerSGD is none."""
        return self.may_encode and any(arena.windows for arena in self._arenas)

    @property
    def codecs(self) -> list[str]:
        """Of its gradients, in canonical form; without PowerSGD."""
        return sorted({arena.coding.way.name for arena in self.coded if arena.coding is not None})

    def switch(self, coded: bool) -> None:
        """Between rounds, on all ranks alike: whether gradients that have a codec are encoded."""
        self._coded = coded
        for arena in self._arenas:
            arena.switch(coded, self.rounds)
        self._level()

    def recode(self, rounds: int) -> None:
        """Between rounds, on all ranks alike: the codecs that are due after so many rounds."""
        self.rounds = rounds
        for arena in self.coded:
            arena.recode(rounds)
        self._level()

    def recall(self) -> dict[str, Memory]:
        """Copies of what codecs remember of each gradient. With no round under way, as below."""
        return {name: memory for arena in self.coded for name, memory in arena.recall().items()}

    def remember(self, memories: Mapping[str, Memory]) -> None:
        """Begins anew with `memories`, of parameters by name."""
        self._left = dict(memories)
        for arena in self.coded:
            arena.forget()
            arena.remember(memories)

    def depart(self) -> list[tuple[Arena, list[Flown]]] | None:
        """Ends the round as `synchronize` does, but doesn't wait: what is in flight is the caller's to wait for.

        `landed` must be called before any gradient of another round comes. None, and nothing has been done, if it can't
        be so: for the first round of an arena, after which its gradients move, for sparse gradients, and where another
        setting may follow (see tuning). Raises InvalidArgumentError as `synchronize` does.
        """
        self.refresh()
        if self.watchers.wait or self._sparse or not all(arena.settled for arena in self._arenas):
            return None
        try:
            with torch.no_grad():
                for arena in self._arenas:
                    arena.finish(discard=False)
            for _, slot in self._slots.values():
                if slot.changed():
                    for arena in self._arenas:
                        arena.wait()
                    raise changed_in_flight(slot)
            departed = [(arena, arena.depart()) for arena in self._arenas]
        finally:
            self._reset()
        self.watchers.tell()
        return departed

    def landed(self) -> None:
        """The round that departed has landed, and all its gradients were read. Idempotent."""
        for arena in self._arenas:
            arena.landed()

    def discard(self) -> None:
        """Ends the round without changing any `p.grad`: for gradients that the user has cleared or is about to."""
        with torch.no_grad():
            self._round(discard=True)

    def restart(self) -> None:
        """Before gradients are cleared: ends a round under way, forgets passes that were counted."""
        if self.active and not self._runtime.closed:
            self.discard()
        self._reset()
        self.refresh()

    def _reset(self) -> None:
        for arena in self._arenas:
            arena.reset()
        self._sparse.touched = False

    def _round(self, discard: bool) -> None:
        try:
            for arena in self._arenas:
                arena.finish(discard)
            self._sparse.start(discard)
            for arena in self._arenas:
                arena.wait()
            self._sparse.wait()
            for arena in self._arenas:
                arena.check_agreed()
            if not discard:
                self._land()
        finally:
            self._reset()

    def _land(self) -> None:
        for _, slot in self._slots.values():
            if slot.changed():
                raise changed_in_flight(slot)
        for arena in self._arenas:
            arena.land()
        for arena in self._arenas:
            arena.settle()
        self._sparse.land()
        back = self._options.sparse_as_dense and not self._options.crossing
        for arena in self._arenas if back else ():
            for slot in arena.sparse():
                slot.sparsify()
        # Gradients that came sparse leave the arenas, which `refresh` rebuilds without them.
        for arena in self._arenas if self.gathers else ():
            for slot in arena.sparse():
                self._sparse.adopt(slot.name, slot.parameter)
