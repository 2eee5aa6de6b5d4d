"""What a process has for as long as it is a member of a job: the runtime that all calls use."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from weakref import WeakSet, WeakValueDictionary

import torch

from byteps_like.collectives.api import CallOptions, Traffic
from byteps_like.config import Config
from byteps_like.errors import BytePSLikeError, InvalidArgumentError, NotInitializedError
from byteps_like.torch.device import devices
from byteps_like.torch.device.api import Device
from byteps_like.torch.device.buffer import DeviceBuffer
from byteps_like.torch.device.flight import Behind
from byteps_like.torch.device.inflight import Parked, release
from byteps_like.torch.device.staged_copy import Stage
from byteps_like.torch.job.backlog import Backlog
from byteps_like.torch.job.join import Joiner
from byteps_like.torch.job.lookout import Lookout
from byteps_like.torch.job.naming import Among, Call, Claim, NameTable
from byteps_like.torch.job.routes import ROUTES, Route, Scope
from byteps_like.torch.job.shadows import PACKED
from byteps_like.worker.api import Declared, Meets, TensorSpec, Worker
from byteps_like.worker.cards import Cards
from byteps_like.worker.collective import CollectiveWorker
from byteps_like.worker.current import JobEntry, found_by
from byteps_like.worker.engine.step_log import LogsSteps, StepLog
from byteps_like.worker.local import LocalWorker
from byteps_like.worker.standing import Standing

logger = logging.getLogger(__name__)

State = TypeVar("State")

_PARTITION_BYTES = 4 << 20
_KEPT = 4  # meanings of a name to remember where a new one costs no message


_WORLD = Among()


class Claiming:
    """Within its block an operation is begun; if that raises, nothing was."""

    __slots__ = ("_claim", "_names")

    def __init__(self, names: NameTable, claim: Claim) -> None:
        self._names, self._claim = names, claim

    def __enter__(self) -> Claim:
        return self._claim

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._names.withdraw(self._claim)


class Runtime:
    """A worker, and what belongs to its membership of one epoch: declared names, names in flight, counters."""

    def __init__(self, worker: Worker, partition_bytes: int = _PARTITION_BYTES, config: Config | None = None) -> None:
        self.config = config or Config()
        if self.config.stream_waits:
            devices.let_streams_wait()
        self.worker = worker
        self.steps = worker.steps if isinstance(worker, LogsSteps) else StepLog()
        """What results of each step lack."""
        self.shares: WeakSet[Any] = WeakSet()
        """Gradients that the ranks of a host share among them (local.shares.LocalShares)."""
        self.clock: Callable[[], float] = time.monotonic
        """Seconds, by which steps are timed."""
        self.gauges: dict[str, dict[str, float]] = {}
        """More of what `stats` says, by who has measured it; the greatest counts."""
        self.route = Route(worker)
        self.names = NameTable()
        self.backlog = Backlog(self.names)
        self.priorities: dict[str, int] = {}
        """Of push_pulls, by name, as declared."""
        self._lookout = Lookout(self.names, worker, self._given_up) if isinstance(worker, Meets) else None
        self.bulk_lock = threading.Lock()
        self.closed = False
        self.arenas: WeakValueDictionary[str, Any] = WeakValueDictionary()
        self.flights: WeakSet[Any] = WeakSet()
        """Steps whose updates may not be made yet (crossing.flight.StepInFlight)."""
        self.left: WeakSet[Parked] = WeakSet()
        """What steps have left in flight whose updates nobody wants any more. Other ranks wait for it."""
        self.behind = Behind()
        """Single tensors that streams wait for."""
        self.joiner: Joiner | None = None
        """Who has joined (join.Joiner); None where there is nobody else, or no collectives."""
        self._states: dict[type, Any] = {}
        self._stages: dict[str, Stage] = {}
        self.closing = ExitStack()
        """What ends with it, before it leaves the job."""
        self._pid = os.getpid()
        self._partition_bytes = partition_bytes
        self._world = Scope(0, self.route, worker)
        self._scopes: dict[int, tuple[tuple[int, ...], Scope | None]] = {}
        """Process sets by number: their members' numbers, and the scope if this is one of them."""
        self._beside: Route | None = None
        self._counters: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._listen_for_joins()

    def _listen_for_joins(self) -> None:
        if self.worker.size > 1:
            with suppress(InvalidArgumentError):  # the portable worker has no collectives, so no join()
                self.joiner = Joiner(self._world.lane("join"), self.names, self._follow, self._has_removed)
                self.joiner.observe(self.route)

    @property
    def has_collectives(self) -> bool:
        """Whether its ranks can exchange anything without servers: portable workers can't."""
        try:
            self._world.lane("collectives")
        except InvalidArgumentError:
            return False
        return True

    @property
    def cards(self) -> Cards | None:
        """Network cards that gradients travel between, in the view in force; None where that isn't known."""
        return getattr(self.worker, "cards", None)

    @property
    def generation(self) -> int:
        """How often all ranks have joined (see join)."""
        return 0 if self.joiner is None else self.joiner.generation

    def claimed(self, scope: Scope, call: Call) -> Claiming:
        """The place of a new operation, which the block begins; if it raises, nothing was begun. See NameTable."""
        if self._lookout is not None:
            self._lookout.begin()
        kept = 0 if scope.route.name == "server" else _KEPT
        among = Among(scope.prefix, scope.ranks) if scope.number else _WORLD
        return Claiming(self.names, self.names.claim(among, call, partial(self._forget, scope), kept))

    def _forget(self, scope: Scope, name: str) -> None:
        """No data will travel under `name` any more."""
        with suppress(BytePSLikeError):  # the job has ended, and holds nothing
            scope.end_lane(name)
            for retired in {name, *scope.route.retire(name)}:
                if self.joiner is not None:
                    self.joiner.forget(retired)

    def _given_up(self, names: Sequence[str]) -> None:
        if self.joiner is not None:
            self.joiner.give_up(names)

    def _follow(self, label: str, order: list[int]) -> None:
        arena = self.arenas.get(label)
        if arena is not None:
            arena.follow(order)

    def declare(self, specs: Sequence[TensorSpec]) -> list[Declared]:
        """Agrees on names with all ranks, on the job's own route. See Route.declare."""
        return self.route.declare(specs)

    def route_for(self, wanted: str) -> Route:
        """The route that the user asked for: one of ROUTES. Raises InvalidArgumentError for one that isn't there."""
        if wanted not in ROUTES:
            raise InvalidArgumentError(f"route={wanted!r} is none of {', '.join(ROUTES)}")
        if wanted in ("auto", self.route.name) or self.route.name == "none":
            return self.route
        if wanted == "server":
            raise InvalidArgumentError("route='server': this job has no servers; start some (byteps-like run -s 1)")
        with self._lock:
            if self._beside is None:
                beside = CollectiveWorker(self.worker, self._partition_bytes, label="beside")
                self._beside = Route(beside, "the user chose it, though the job has servers")
                if self.joiner is not None:
                    self.joiner.observe(self._beside)
            return self._beside

    def barrier(self, scope: Scope, timeout: float | None) -> None:
        """See the function of that name."""
        end = time.monotonic() + (self.config.stall_timeout if timeout is None else timeout)
        if self.joiner is not None and scope.size > 1:  # first, that none of them has joined
            self.joiner.check("barrier", scope.ranks)
            name = _barrier_of(scope, self.generation)
            options = CallOptions(timeout=timeout, traffic=Traffic.CONTROL)
            coming = scope.lane(name).barrier(options)
            self.joiner.watch(name, coming, scope)
            coming.wait()
        scope.route.worker.barrier(max(end - time.monotonic(), 0.001))

    # Process sets

    def scope(self, process_set: object) -> Scope:
        """The ranks that `process_set` stands for: a ProcessSet, its number, or None for all.

        Raises InvalidArgumentError if there is no such set, or this rank is not in it.
        """
        number = getattr(process_set, "process_set_id", process_set)
        if process_set is None or number == 0:
            return self._world
        members, scope = self._scopes.get(number, ((), None)) if isinstance(number, int) else ((), None)
        if not members:
            raise InvalidArgumentError(
                f"process_set={process_set!r} is not known; add it by add_process_set() or init(process_sets=...)"
            )
        if scope is None:
            ranks = list(self.worker.standing.ranks_of(members))
            raise InvalidArgumentError(f"rank {self.worker.rank} is not in process set {number}, ranks {ranks}")
        return scope

    def includes(self, process_set: object) -> bool:
        """Whether this rank is in `process_set`. Raises InvalidArgumentError if there is no such set."""
        number = getattr(process_set, "process_set_id", process_set)
        members, scope = self._scopes.get(number, ((), None)) if isinstance(number, int) else ((), None)
        return scope is not None or (not members and self.scope(process_set) is not None)

    def has_scope(self, number: int, ranks: Sequence[int]) -> bool:
        """Whether there is a process set of that number and those ranks."""
        return self.ranks_of(number) == tuple(ranks)

    def ranks_of(self, number: int) -> tuple[int, ...]:
        """World ranks of the process set of that number, in the view in force; none if it isn't there."""
        standing: Standing = self.worker.standing
        return standing.ranks if number == 0 else standing.ranks_of(self._scopes.get(number, ((), None))[0])

    def add_scope(self, ranks: Sequence[int]) -> int:
        """Makes a process set and returns its number: the same on all ranks, if all make theirs in one order."""
        standing, chosen = self.worker.standing, tuple(ranks)
        if not chosen or not set(chosen) <= set(standing.ranks):
            raise InvalidArgumentError(f"process set {list(chosen)}: not ranks of a world of {standing.size}")
        if any(chosen == self.ranks_of(known) for known in (0, *self._scopes)):
            raise InvalidArgumentError(f"there is a process set of ranks {list(chosen)} already")
        number, members = self.count("process sets") + 1, standing.members_of(chosen)
        self._scopes[number] = (members, self._member(number, members) if standing.rank in chosen else None)
        return number

    def _member(self, number: int, members: tuple[int, ...]) -> Scope:
        reducer: Worker
        if len(members) == 1:
            reducer = LocalWorker(self._partition_bytes)
        else:
            reducer = CollectiveWorker(self.worker, self._partition_bytes, members, f"set{number}")
        return Scope(number, Route(reducer, "process sets have no servers"), self.worker, members)

    def remove_scope(self, number: int) -> bool:
        """Forgets a process set, and all that was held for it; whether there was one."""
        members, scope = self._scopes.pop(number, ((), None))
        if scope is not None and self.names.end(scope.prefix):
            scope.end()
            if self.joiner is not None:
                self.joiner.forget_set(scope.prefix)
        return bool(members)

    def _has_removed(self, number: int) -> bool:
        return 0 < number <= self._counters["process sets"] and number not in self._scopes

    def of(self, kind: type[State]) -> State:
        """What a feature keeps for as long as this runtime: the one instance of its class `kind`."""
        with self._lock:
            if kind not in self._states:
                self._states[kind] = kind()
            found: State = self._states[kind]
            return found

    def count(self, kind: str) -> int:
        """0, 1, 2, ... for each kind: the same on all ranks if these make their things in the same order."""
        with self._lock:
            self._counters[kind] += 1
            return self._counters[kind] - 1

    def counted(self, kind: str, number: int) -> None:
        """One that was made in another world goes on in this one: those that are made here come behind it."""
        with self._lock:
            self._counters[kind] = max(self._counters[kind], number + 1)

    @property
    def partition_bytes(self) -> int:
        """Of tensors that ask for no size of their own."""
        return self._partition_bytes

    def finish_updates(self) -> None:
        """Blocks until the updates of all steps that were made are there. Raises as Flight.finish."""
        for flight in list(self.flights):
            flight.land()

    def stats(self) -> dict[str, float]:
        """See the function of that name."""
        found: dict[str, float] = {**self.worker.stats()}
        for figures in list(self.gauges.values()):  # Prometheus asks from a thread of its own
            found.update((name, max(value, found.get(name, 0.0))) for name, value in figures.items())
        return found

    def stage(self, device: Device) -> Stage:
        """Through which tensors on `device` travel."""
        with self._lock:
            if device.name not in self._stages:
                self._stages[device.name] = Stage(device)
            return self._stages[device.name]

    def place(self, tensor: torch.Tensor) -> tuple[int, DeviceBuffer | None]:
        """The address in this host's memory through which a contiguous tensor travels, and its place on a device."""
        device = devices.of(tensor)
        if device is None:
            return tensor.data_ptr(), None
        place = DeviceBuffer.of(tensor, self.stage(device))
        return place.host.data_ptr(), place

    def begin_anew(self) -> None:
        """All ranks have joined (see join): calls are counted from 0 again, under names that none has used."""
        self.names.begin_anew()
        for scope in [self._world, *(scope for _, scope in self._scopes.values() if scope is not None)]:
            self._forget(scope, _barrier_of(scope, self.generation - 1))
            for name in [name for name in scope.route.names if name.startswith(PACKED)]:
                self._forget(scope, name)

    def close(self) -> None:
        """Leaves the job, after the updates of steps that were made. Idempotent; does nothing in a forked child."""
        if os.getpid() == self._pid:
            self.closing.close()
        if self._lookout is not None:
            self._lookout.close()
        if not self.closed and os.getpid() == self._pid:
            try:
                self.finish_updates()
            except BytePSLikeError as error:
                logger.warning("rank %d: updates of the last step are lost: %s", self.worker.rank, error)
            for parked in list(self.left):
                parked.wait()
            self.closed = True
            for shares in list(self.shares):
                shares.close()
            self.worker.close()
            for stage in self._stages.values():
                stage.close()
            release()


def _barrier_of(scope: Scope, generation: int) -> str:
    return f"{scope.prefix}barrier~{generation}"


@dataclass(frozen=True)
class Pending:
    """Of a process that has come to an elastic job while a world runs: it joins with its first operation."""

    config: Config
    standing: Standing
    """Where it would stand if it joined now."""
    join: Callable[[], None]
    """Blocks until a world has formed with it, whose runtime is installed then."""


_process: Runtime | None = None
_pending: Pending | None = None
_suspended: Standing | None = None
_bound: ContextVar[Runtime | None] = ContextVar("byteps_like_runtime", default=None)


def current() -> Runtime:
    """The runtime of this thread (see `bound`), else of the process. Raises NotInitializedError without one, and blocks
    where the process has yet to join (see Pending)."""
    to_join = _pending
    if to_join is not None and _bound.get() is None:
        to_join.join()
    return installed()


def if_installed() -> Runtime | None:
    """The same, of a world that this process is in already; None without one. For whoever only asks: never joins."""
    return _bound.get() or _process


def installed() -> Runtime:
    """The same. Raises NotInitializedError without one."""
    runtime = if_installed()
    if runtime is None:
        raise NotInitializedError("byteps_like.torch is not initialized; call init() first")
    return runtime


def settings() -> Config:
    """Those of the job; never blocks. Raises NotInitializedError."""
    to_join = _pending
    return to_join.config if to_join is not None and _bound.get() is None else installed().config


def pending() -> Pending | None:
    """That this process has yet to join its job, if it has."""
    return _pending


def has_yet_to_join() -> bool:
    """Whether `current` would join first, on this thread."""
    return _pending is not None and _bound.get() is None


def _worker() -> Worker:
    return current().worker


def _join_beside(config: Config) -> Worker:
    # Not at the top: most processes are in one job.
    from byteps_like.worker.session import connect

    return connect(config)


@contextmanager
def bound(worker: Worker) -> Iterator[Runtime]:
    """Within the block, calls of this thread go through `worker`: for hosts of several ranks in one process."""
    runtime = Runtime(worker)
    try:
        with using(runtime):
            yield runtime
    finally:
        runtime.close()


@contextmanager
def using(runtime: Runtime) -> Iterator[None]:
    """Within the block, calls of this thread go through `runtime`."""
    token = _bound.set(runtime)
    try:
        yield
    finally:
        _bound.reset(token)


def install(runtime: Runtime | None, suspended: Standing | None = None) -> Runtime | None:
    """Makes `runtime` that of the process; returns the one before. `suspended`: what to say while there is none."""
    global _process, _suspended, _pending
    before, _process, _suspended, _pending = _process, runtime, suspended, None
    return before


def postpone(to_join: Pending) -> None:
    """The process has a runtime once it has joined."""
    global _pending
    install(None)
    _pending = to_join


def initialized() -> bool:
    """Returns whether `init()` has been called without a later `shutdown()`."""
    return (_bound.get() or _process or _pending) is not None


found_by("byteps_like.torch", JobEntry(initialized, _worker, _join_beside))


def standing() -> Standing:
    """Where the worker stands, or stood, between suspend() and resume(). Raises NotInitializedError."""
    runtime = _bound.get() or _process
    if runtime is None and _pending is not None:
        return _pending.standing
    if runtime is None and _suspended is not None:
        return _suspended
    found: Standing = installed().worker.standing
    return found


def rank() -> int:
    """Returns the rank of this worker, from 0 to size() - 1."""
    return standing().rank


def size() -> int:
    """Number of workers."""
    return standing().size


def local_rank() -> int:
    """Returns the rank of this worker among the workers of its host."""
    return standing().local_rank


def local_size() -> int:
    """Returns the number of workers on this host."""
    return standing().local_size
