"""Gradients reduced to shards while backward runs, and parameters updated chunk by chunk as the shards come."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

import torch

from byteps_like.dtypes import DType, Op
from byteps_like.errors import InvalidArgumentError, MismatchError
from byteps_like.timeline.recorder import recorder
from byteps_like.torch.compression.policy import Compress
from byteps_like.torch.gradients.bucket import Departed, Place
from byteps_like.torch.gradients.parts import Named
from byteps_like.torch.gradients.relay import Promised, Relay
from byteps_like.torch.gradients.selecting import selected
from byteps_like.torch.gradients.slot import too_many_passes
from byteps_like.torch.job import runtime as _runtime
from byteps_like.torch.job.routes import Route
from byteps_like.torch.job.tracing import follow_recorder
from byteps_like.torch.ops.objects import allgather_object
from byteps_like.torch.reduction.codec_memory import CodecMemory
from byteps_like.torch.reduction.options import ReducerOptions
from byteps_like.torch.reduction.parameter_set import ParameterSet, level
from byteps_like.torch.reduction.reducer import chosen_route
from byteps_like.torch.reduction.round_hooks import Watchers
from byteps_like.torch.sharded.arena import ShardArena, lost_shares
from byteps_like.torch.sharded.gradient import ShardSlot
from byteps_like.torch.sharded.state import described, moved
from byteps_like.torch.sharded.update import SliceOptimizer, SliceStep
from byteps_like.worker.api import Handle, Links, Tunable

_ON_HOST_ONLY = "shares of the state are cut in this host's memory; leave shard out, or use FSDP2 (docs/how-to/c10d.md)"


class ShardReducer:
    """Reduces the gradients of the parameters that `source` lists to this rank's shares of them.

    A round begins with the first backward and ends with `step`; see GradientReducer for passes. New parameters get an
    arena of their own when they are first seen; those that leave `source` stay in theirs, unused. Arenas die with their
    runtime, since the other ranks' shares of the state do. Every rank must see the same changes between the same calls.
    """

    def __init__(self, source: Callable[[], Iterable[Named]], options: ReducerOptions, slices: SliceOptimizer) -> None:
        """`slices` updates this rank's shares."""
        self.passes_per_step = 1
        self.on_gradient: Callable[[torch.Tensor], None] | None = None
        self.slices, self.exchange = slices, partial(allgather_object, process_set=options.process_set)
        self._partition_bytes, self._links = 0, Links()
        self._options = options
        self._finished = self._departed = False
        self._runtime = _runtime.current()
        if options.crossing:
            self._runtime.of(Relay).begin()
        scope = self._runtime.scope(options.process_set)
        self.route = chosen_route(self._runtime, scope, options.route)
        self.label = f"gradients.{self._runtime.count(f'{scope.prefix}gradients')}"
        self.watchers = Watchers()
        hook = partial(ShardReducer._accumulated, weakref.ref(self))
        self._parameters: ParameterSet[ShardArena] = ParameterSet(source, hook, _ON_HOST_ONLY)
        self.codecs = CodecMemory(self._parameters.buckets, options.switches)
        self._parameters.enter(self._runtime, self.label)
        self.route.report(self.label)
        self.refresh()

    @property
    def arenas(self) -> list[ShardArena]:
        """In the order in which they were made."""
        return self._parameters.buckets

    def refresh(self) -> None:
        """New parameters get an arena of their own. All ranks must see the same ones. Raises ShutdownError."""
        if recorder.changed:
            follow_recorder()
        if self._runtime.closed:
            raise lost_shares()
        named = list(self._parameters.source())
        fresh = [item for item in named if item[1].requires_grad and item[1] not in self._parameters]
        if fresh:
            self._parameters.add(fresh, self._options.rules.of, self._make_arena)
        for _, parameter in named:
            if parameter in self._parameters:
                self._parameters.hook(parameter)

    def _make_arena(self, label: str, named: list[Named], way: Compress) -> ShardArena:
        size = 0
        if way.auto is not None:
            way, size = selected(self._runtime, self.route, self.label, way, [item for _, item in named])
            self.codecs.selects = self.codecs.selects or way.is_coded
        size = self._partition_bytes or size
        arena = ShardArena(self.route, label, named, way, self._options.scaling, size)
        arena.links = self._links
        self.codecs.begin(arena)
        return arena

    def close(self) -> None:
        """Removes the hooks and forgets the arenas. Idempotent."""
        self._parameters.close()

    # Rounds

    @property
    def runtime(self) -> _runtime.Runtime:
        """See Reducer."""
        return self._runtime

    @property
    def free(self) -> bool:
        """See Reducer: shares go by collectives."""
        return False

    @property
    def partition_bytes(self) -> int:
        """See Reducer."""
        return self._partition_bytes or self._runtime.partition_bytes

    algorithms = ("", "ring")
    """See Adaptable: those that both a reduce-scatter and an all-gather have."""

    def use(self, route: Route, links: Links) -> None:
        """See Adaptable."""
        self._links = links
        for arena in self.arenas:
            arena.links = links
        if isinstance(route.worker, Tunable):
            route.worker.use(links)

    def recut(self, route: Route, partition_bytes: int) -> None:  # noqa: ARG002 - there is but one
        """See Adaptable: state moves with its elements. On the wire: what of it changes hands. Raises
        InvalidArgumentError, on all ranks and with nothing cut yet, for state that can't move."""
        known = described(self.arenas, self.slices.state, self.exchange)
        self._partition_bytes = partition_bytes
        for arena, entries in zip(self.arenas, known, strict=True):
            before = arena.layout, arena.chunks
            arena.recut(partition_bytes)
            self.slices.state.update(moved(arena, before, self.slices.state, entries))
        level(self.arenas)

    @property
    def complete(self) -> bool:
        """See Reducer."""
        return all(arena.complete for arena in self.arenas)

    @property
    def active(self) -> bool:
        """Whether a round is under way: at least one gradient was made ready."""
        return any(slot.ready for slot in self._parameters.slots())

    @property
    def touched(self) -> bool:
        """Whether a backward has reached any parameter since the last round."""
        return any(slot.passes or slot.ready for slot in self._parameters.slots())

    @staticmethod
    def _accumulated(reference: weakref.ref[ShardReducer], parameter: torch.Tensor) -> None:
        """Autograd's hook."""
        reducer = reference()
        if reducer is not None:
            with torch.no_grad():
                reducer._arrived(parameter)

    def _arrived(self, parameter: torch.Tensor) -> None:
        if self._runtime.closed:
            self.refresh()
        if self.on_gradient is not None:
            self.on_gradient(parameter)
        arena, slot = self._parameters[parameter]
        if slot.ready:
            self._repeated(slot)
        slot.count()
        if slot.passes >= self.passes_per_step:
            arena.ready(slot)

    def _repeated(self, slot: ShardSlot) -> None:
        """A gradient that was sent already is there again: right only if all that were sent have been cleared."""
        if not all(other.cleared() for other in self._parameters.slots() if other.ready):
            raise too_many_passes(slot, self.passes_per_step)
        self._discard()

    def restart(self) -> None:
        """Before gradients are cleared: ends a round under way, forgets passes that were counted."""
        if self.active and not self._runtime.closed:
            self._discard()
        self._reset()
        self.refresh()

    def synchronize(self) -> None:
        """Blocks until this rank's shares of all gradients are reduced, for `norm` and `scale`; `step` goes on there.

        Raises InvalidArgumentError if a gradient was put where one was sent already, MismatchError if other ranks
        cleared theirs, and the job's error.
        """
        with torch.no_grad(), self._over_after_errors():
            self._finish(discard=False)
            self._agree()
            for arena in self.arenas:
                arena.wait()
                arena.land()

    def _finish(self, discard: bool) -> None:
        """Once a round: sends what is missing."""
        if self._finished:
            return
        self.refresh()
        if self._runtime.joiner is not None:
            self._runtime.joiner.check("a step of a sharded optimizer")
        if not discard:
            self._check()
        self._finished = True
        for arena in self.arenas:
            arena.finish(discard)

    def _check(self) -> None:
        """Raises InvalidArgumentError, after throwing the round away: so the other ranks, which don't know of it, have
        all that they wait for, and are told."""
        try:
            for arena in self.arenas:
                arena.check()
        except InvalidArgumentError:
            with suppress(MismatchError):
                self._discard()
            raise

    def _agree(self) -> None:
        """With the other ranks, on what gradients there are. Raises MismatchError."""
        for arena in self.arenas:
            arena.check_agreed()

    def step(self) -> SliceStep:
        """Has each chunk's slices updated when their gradients are here, and starts their gathering at once.

        Blocks until all parameters are new. Chunks are taken as they come; of several that are here, the one with
        layers nearest to the input first. What the optimizer raises is for `check` of the result: all ranks take part
        in the round to its end.
        """
        with torch.no_grad():
            with self._over_after_errors():
                self._finish(discard=False)
                self._agree()
                step = self.slices.begin()
                for arena in self.arenas:
                    for _ in updated(arena, step):
                        pass
                for arena in self.arenas:
                    arena.wait_gathered()
                step.attempt(self.slices.end)
            self._reset()
            self.codecs.recode(self.codecs.rounds + self.complete)
            self.watchers.tell()
        return step

    @contextmanager
    def _over_after_errors(self) -> Iterator[None]:
        """What is raised within ends the round: the next begins with nothing in flight."""
        try:
            yield
        except BaseException as error:
            for arena in self.arenas if isinstance(error, Exception) else ():
                arena.calm_down()
            self._reset()
            raise

    def depart(self) -> list[Departed] | None:
        """Does as `step`, but waits for nothing: a thread updates shares as their gradients come, and starts their
        gathering. What is in flight is the caller's to wait for; `landed` must follow before the next gradient.

        None, and nothing has been done, in the first round of an arena, and where another setting or codec may follow.
        """
        self.refresh()
        if self.watchers.wait or self.codecs.due or not all(arena.settled for arena in self.arenas):
            return None
        with torch.no_grad():
            try:
                self._finish(discard=False)
                departed = [(arena, *arena.depart()) for arena in self.arenas]
                step = self.slices.begin()
                step.attempt(self.slices.end)
            except InvalidArgumentError:  # thrown away here, but the other ranks count the round
                self.codecs.rounds += self.complete
                self.watchers.tell()
                raise
            finally:
                self._reset()
            self._departed = True
            rounds = [(arena, promised) for arena, _, promised in departed]
            self._runtime.of(Relay).put(partial(_pass_on, rounds, step))
            self.watchers.tell()
        return [item for _, item, _ in departed]

    def landed(self) -> None:
        """The round that departed has landed. Idempotent."""
        if self._departed:
            self._departed = False
            for arena in self.arenas:
                arena.landed()
            self.codecs.rounds += self.complete

    def note(self, flight: object) -> None:
        """See Departing."""
        self._runtime.flights.add(flight)

    def came_sparse(self, place: Place) -> None:
        """Never called: sparse gradients are made dense."""

    def _discard(self) -> None:
        """Ends a round that is thrown away."""
        with torch.no_grad(), self._over_after_errors():
            self._finish(discard=True)
            self._agree()
            for arena in self.arenas:
                arena.wait()
        self._reset()

    def _reset(self) -> None:
        for arena in self.arenas:
            arena.reset()
        self._finished = False

    # Over the shares of all ranks

    def norm(self, kind: float) -> float:
        """The norm of all reduced gradients as one vector, over all ranks: one all-reduce of one number. Blocks."""
        greatest = kind == float("inf")
        norms = [torch.linalg.vector_norm(grad, kind, dtype=_wide(grad)) for grad in self._gradients()]
        local = (
            torch.stack([norm.double() for norm in norms])
            if norms
            else torch.zeros(1, dtype=torch.float64, device="cpu")
        )
        total = local.max() if greatest else (local**kind).sum()
        for arena in self.arenas[:1]:
            op = Op.MAX if greatest else Op.SUM
            arena.control_lane.all_reduce(total.data_ptr(), total.data_ptr(), 1, DType.FLOAT64, op).wait()
        return float(total if greatest else total ** (1.0 / kind))

    def scale(self, factor: float) -> None:
        """Multiplies all reduced gradients."""
        for arena in self.arenas:
            for chunk in arena.chunks:
                chunk.reduced.mul_(factor)

    def _gradients(self) -> list[torch.Tensor]:
        slices = (piece for arena in self.arenas for chunk in arena.chunks for piece in chunk.slices.values())
        return [piece.grad for piece in slices if piece.grad is not None]


def updated(arena: ShardArena, step: SliceStep) -> Iterator[tuple[int, Handle]]:
    """Updates this rank's shares of all chunks as their gradients come; yields chunks and their all-gathers."""
    for _ in arena.chunks:
        _, number = arena.arrivals.get()
        arena.land_chunk(number)
        slices = arena.chunks[number].slices.items()
        step.attempt(step.update, [(arena.slots[slot].parameter, piece) for slot, piece in slices])
        yield number, arena.gather(number)


def _pass_on(rounds: Sequence[tuple[ShardArena, list[Promised]]], step: SliceStep) -> None:
    """On the relay's thread: from reduced gradients to all-gathers, of rounds that have departed.

    It waits for what all ranks have sent by the end of their step(), never for an all-gather.
    """
    try:
        with torch.no_grad():
            for arena, _ in rounds:
                arena.check_agreed()
            for arena, promised in rounds:
                for number, gathered in updated(arena, step):
                    promised[number].keep(gathered, step.failure)
    except Exception as error:  # noqa: BLE001 - raised by who waits for them
        for promise in (promise for _, promised in rounds for promise in promised):
            promise.fail(error)


def _wide(grad: torch.Tensor) -> torch.dtype:
    return torch.complex128 if grad.is_complex() else torch.float64
