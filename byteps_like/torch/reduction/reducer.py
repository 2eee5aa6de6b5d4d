"""Gradients reduced while backward runs: hooks, buckets and rounds, for DistributedOptimizer and DDP alike."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch

from byteps_like.errors import InvalidArgumentError
from byteps_like.timeline.recorder import recorder
from byteps_like.torch.compression.policy import Compress
from byteps_like.torch.gradients.arena import Arena
from byteps_like.torch.gradients.bucket import Bucket, Departed, Place
from byteps_like.torch.gradients.low_rank import LowRankArena
from byteps_like.torch.gradients.parts import Named
from byteps_like.torch.gradients.relay import Relay
from byteps_like.torch.gradients.selecting import selected
from byteps_like.torch.job import runtime as _runtime
from byteps_like.torch.job.routes import Route, Scope
from byteps_like.torch.job.tracing import follow_recorder
from byteps_like.torch.reduction.beside import Accumulated, Beside
from byteps_like.torch.reduction.codec_memory import CodecMemory
from byteps_like.torch.reduction.options import ReducerOptions
from byteps_like.torch.reduction.parameter_set import ParameterSet, level
from byteps_like.torch.reduction.round_hooks import Watchers
from byteps_like.torch.reduction.rounds import Rounds, Taker
from byteps_like.torch.reduction.sparse import SparseGradients
from byteps_like.torch.reduction.sparse_router import SparseRouter
from byteps_like.worker.api import Links, Tunable

MakeBeside = Callable[["GradientReducer"], Beside]
"""Made anew in each world; to hold the reducer weakly."""


class GradientReducer:
    """Reduces the gradients of the parameters that `source` lists, over all ranks.

    A round begins with the first backward and ends with `synchronize`; in between, the `passes_per_step`-th backward
    that reaches a parameter makes its gradient ready, and complete partitions are sent from within backward.

    Parameters may come and go in `source`, and be frozen or not: new ones get a bucket of their own when they are
    first seen, and all buckets are rebuilt when some have gone. Every rank must see the same changes between the same
    calls. Holds no reference to what owns it; `close`, or its deletion, removes the hooks.

    Its parts: who takes part (`parameters`), their codecs (`codecs`), who has left the buckets (`beside`; of them those
    that travel by rows: `sparse`), and the rounds.
    """

    def __init__(
        self, source: Callable[[], Iterable[Named]], options: ReducerOptions, besides: Sequence[MakeBeside] = ()
    ) -> None:
        self.passes_per_step = 1
        self.paused = False
        self.on_first: Callable[[], None] | None = None
        self.on_gradient: Callable[[torch.Tensor], None] | None = None
        self.watchers = Watchers()
        self.options = options
        self._besides = besides
        hook = partial(GradientReducer._accumulated, weakref.ref(self))
        self.parameters: ParameterSet[Bucket] = ParameterSet(source, hook, options.only_on_host)
        self.codecs = CodecMemory(self.parameters.buckets, options.switches)
        self._start()
        self.refresh()

    def _start(self) -> None:
        """In a new world."""
        self._runtime = _runtime.current()
        scope = self._runtime.scope(self.options.process_set)
        self.route = chosen_route(self._runtime, scope, self.options.route)
        self.label = f"gradients.{self._runtime.count(f'{scope.prefix}gradients')}"
        self._partition_bytes = 0
        self.codecs.restart()
        self.parameters.enter(self._runtime, self.label)
        self.sparse = self._sparse_router()
        self.beside: list[Beside] = [self.sparse, *(make(self) for make in self._besides)]
        self._rounds = Rounds(self.parameters, self.beside, self.sparse.came_sparse)
        self.route.report(self.label)

    def _sparse_router(self) -> SparseRouter:
        options, able = self.options, self._runtime.has_collectives
        return SparseRouter(
            SparseGradients(self.label, options.scaling.op, options.process_set),
            gathers=not options.sparse_as_dense and able,
            counts=able,
            restores=options.sparse_as_dense,
        )

    # Membership

    def refresh(self) -> None:
        """Looks at the parameters again. New ones join at once; old ones leave when no round is under way."""
        if recorder.changed:
            follow_recorder()
        if self._runtime.closed:
            self.landed()  # shutdown() has waited for it
            self.codecs.leave()
            self.parameters.drop()
            for item in self.beside:
                item.close()
            self._start()
        self._keep_beside()
        added, some_left = self.parameters.newcomers(self._dense())
        if some_left and not self.active:
            self._land_departed()
            added = [item for item in self._dense() if item[1].requires_grad or item[1] in self.parameters]
            self.codecs.leave()
            self.parameters.drop()
        if added:
            self.parameters.add(added, self._way_of, self._make_bucket)
        for parameter in [parameter for item in self.beside for parameter in item.parameters]:
            self.parameters.hook(parameter)

    def _keep_beside(self) -> None:
        """What has gone from `source` after its gradient had left the buckets is no longer listened to."""
        for item in self.beside:
            before = item.parameters
            item.keep(self.parameters.source)
            for parameter in before:
                if parameter not in item:
                    self.parameters.unhook(parameter)

    def _land_departed(self) -> None:
        """Blocks until nothing is in flight: by then buckets remember what new ones are to go on from."""
        if self._rounds.departed:
            self._runtime.finish_updates()
            self.landed()

    def _dense(self) -> Iterable[Named]:
        """The parameters whose gradients go through buckets."""
        named, left = self.parameters.source(), self._left()
        return [item for item in named if id(item[1]) not in left] if left else named

    def _left(self) -> set[int]:
        """Ids of the parameters whose gradients have left their buckets."""
        return {id(parameter) for item in self.beside for parameter in item.parameters}

    def in_bucket(self, parameter: torch.Tensor) -> bool:
        """Whether the gradient of `parameter` goes through a bucket in the round under way, or the next one."""
        return parameter in self.parameters and not any(parameter in item for item in self.beside)

    def _way_of(self, name: str, parameter: torch.Tensor) -> Compress:
        way = self.options.rules.of(name, parameter)
        for item in self.beside:
            item.consider(name, parameter, way)
        return way

    def _make_bucket(self, label: str, named: list[Named], way: Compress) -> Bucket:
        size = 0
        if way.auto is not None:
            way, size = selected(self._runtime, self.route, self.label, way, [item for _, item in named])
            self.codecs.selects = self.codecs.selects or way.is_coded
        bucket = self._low_rank(label, named, way) if way.low_rank else self._arena(label, named, way, size)
        self.codecs.begin(bucket)
        if self._partition_bytes:
            bucket.recut(self.route, self._partition_bytes)
        for slot in bucket.slots:
            slot.warns_sparse = not (self.options.sparse_as_dense or self.sparse.gathers)
        return bucket

    def _low_rank(self, label: str, named: list[Named], way: Compress) -> Bucket:
        options, relay = self.options, self._runtime.of(Relay)
        if options.crossing:
            relay.begin()
        bucket = LowRankArena(self.route, label, named, way, options.scaling, relay, options.crossing)
        self._runtime.arenas.update((part.label, part) for part in bucket.parts)
        return bucket

    def _arena(self, label: str, named: list[Named], way: Compress, partition_bytes: int) -> Bucket:
        options = self.options
        arena = Arena(self.route, label, named, way, options.scaling, options.crossing, partition_bytes)
        if options.transform is not None:
            for slot in arena.slots:
                slot.transform = partial(options.transform, arena)
        return arena

    def close(self) -> None:
        """Removes the hooks and forgets the buckets; gradients stay where they are. Idempotent."""
        self.parameters.close()
        for item in self.beside:
            item.close()

    # Rounds

    @property
    def runtime(self) -> _runtime.Runtime:
        """The membership that it reduces by."""
        return self._runtime

    @property
    def free(self) -> bool:
        """Whether nobody has said which way gradients go."""
        return self.options.route == "auto" and self.options.process_set is None

    @property
    def partition_bytes(self) -> int:
        """Of its buckets."""
        return self._partition_bytes or self._runtime.partition_bytes

    @property
    def complete(self) -> bool:
        """Whether all ranks took part in the round that has landed: none has joined."""
        return all(bucket.complete for bucket in self.parameters.buckets)

    algorithms = ("", "ring", "halving_doubling")
    """See Adaptable."""

    def use(self, route: Route, links: Links) -> None:
        """See Adaptable."""
        if isinstance(route.worker, Tunable):
            route.worker.use(links)

    def recut(self, route: Route, partition_bytes: int) -> None:
        """Between rounds, on all ranks alike: see Bucket.recut. Holds for buckets to come, too."""
        with torch.no_grad():
            for bucket in self.parameters.buckets:
                bucket.recut(route, partition_bytes)
        level(self.parameters.buckets)
        self.route, self._partition_bytes = route, partition_bytes
        for item in self.beside:
            item.recut(route, partition_bytes)
        self.refresh()

    def note(self, flight: object) -> None:
        """`flight` (a Flight) is to be finished before this process leaves the job."""
        self._runtime.flights.add(flight)

    @property
    def active(self) -> bool:
        """Whether a round is under way: at least one gradient was made ready."""
        return self._rounds.active

    @property
    def touched(self) -> bool:
        """Whether a backward has reached any parameter since the last round."""
        return self._rounds.touched

    @staticmethod
    def _accumulated(reference: weakref.ref[GradientReducer], parameter: torch.Tensor) -> None:
        """Autograd's hook. What runs here runs for each gradient: tests count the calls."""
        reducer = reference()
        if reducer is None or reducer.paused:
            return
        if reducer.on_first is not None or reducer.on_gradient is not None or reducer._runtime.closed:
            reducer._announce(parameter)
        reducer._rounds.accumulated(parameter, reducer.passes_per_step)

    def arrived(self, parameter: torch.Tensor, taker: Taker, slot: Accumulated) -> None:
        """Backward has made what the gradient of `parameter` is made of, which has left its bucket. See Rounds."""
        if self.paused:
            return
        self._announce(parameter)
        self._rounds.arrived(taker, slot, self.passes_per_step)

    def _announce(self, parameter: torch.Tensor) -> None:
        with torch.no_grad():
            if self._runtime.closed:
                self.refresh()
            if self.on_first is not None:
                self.on_first()
            if self.on_gradient is not None:
                self.on_gradient(parameter)

    def synchronize(self) -> None:
        """Ends the round: sends what is missing, blocks until all has landed and makes it every `p.grad`.

        A parameter whose `p.grad` is None on all ranks keeps None; one that has none on some ranks counts as zeros
        there. Raises InvalidArgumentError if a gradient was changed after it was sent, MismatchError if other ranks
        cleared theirs instead, and the job's error.
        """
        with torch.no_grad():
            self.refresh()
            left = self._left()
            self._rounds.end(discard=False)
            for item in self.beside if self.complete else ():
                item.reroute(self.codecs.rounds)
            self.codecs.recode(self.codecs.rounds + self.complete)
            if self._left() != left or not self.parameters.settled:
                self.refresh()
            self.watchers.tell()

    def depart(self) -> list[Departed] | None:
        """Ends the round as `synchronize` does, but doesn't wait: what is in flight is the caller's to wait for.

        `landed` must be called before any gradient of another round comes. None, and nothing has been done, if it can't
        be so: see Rounds.depart, and where another setting (see tuning) or codec may follow, or gradients may leave
        their buckets or return. Raises InvalidArgumentError as `synchronize` does.
        """
        self.refresh()
        moves = any(item.due(self.codecs.rounds) for item in self.beside)
        if self.watchers.wait or self.codecs.due or moves:
            return None
        with torch.no_grad():
            try:
                departed = self._rounds.depart()
            except InvalidArgumentError:  # thrown away here, but the other ranks count the round
                self.codecs.rounds += self.complete
                self.watchers.tell()
                raise
        if departed is not None:
            self.watchers.tell()
        return departed

    def came_sparse(self, place: Place) -> None:
        """See Departing."""
        self.sparse.came_sparse(place)

    def landed(self) -> None:
        """The round that departed has landed, and all its gradients were read. Idempotent."""
        if self._rounds.landed():
            self.codecs.rounds += self.complete

    def discard(self) -> None:
        """Ends the round without changing any `p.grad`: for gradients that the user has cleared or is about to."""
        with torch.no_grad():
            self._rounds.end(discard=True)

    def restart(self) -> None:
        """Before gradients are cleared: ends a round under way, forgets passes that were counted."""
        if self.active and not self._runtime.closed:
            self.discard()
        self._rounds.reset()
        self.refresh()


def chosen_route(runtime: _runtime.Runtime, scope: Scope, wanted: str) -> Route:
    """The route among the ranks of `scope` that the user asked for. Raises InvalidArgumentError if it isn't there."""
    route = scope.route if scope.number else runtime.route_for(wanted)
    if scope.number and wanted == "server":
        raise InvalidArgumentError("route='server': servers sum over all ranks, not over a process set")
    return route
