"""Tensors that servers keep, over the C++ engine: opens them, contributes to them, reads them."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from byteps_like.control.members.seats import Waiting
from byteps_like.dtypes import Op
from byteps_like.errors import DeadlineError, InvalidArgumentError, MismatchError, StalledError
from byteps_like.wire.note import Applied, Note
from byteps_like.wire.saving import encode_let_go
from byteps_like.worker.api import Declared
from byteps_like.worker.engine.waiting import Describe
from byteps_like.worker.keeping import (
    KeepHandle,
    KeepSpec,
    KeptTensor,
    Outcome,
    PayloadAt,
    RangeHandle,
    SavingRequest,
    check_keep,
    check_note,
    check_together,
)
from byteps_like.worker.local import check_push_pull

NOBODY = 0xFFFFFFFF
"""As the rank that gives the first value: it begins as zeros. No version has this number."""

Start = Callable[[Any, int], Any]
"""Begins an operation: given the engine, and the tensor's id there."""


class KeepsByEngine(Protocol):
    """What kept tensors need of their worker."""

    @property
    def rank(self) -> int:
        """Its rank."""

    @property
    def size(self) -> int:
        """How many ranks there are."""

    def stats(self) -> Mapping[str, float]:
        """Its counters; see worker.api.Worker."""

    @property
    def stall_timeout(self) -> float:
        """Seconds of waiting after which the job has stalled."""

    def begin(self, declared: Declared, start: Start) -> Any:
        """Has the engine begin an operation on a tensor. Raises the job's error."""

    def wait_for(self, operation: Any, name: str, timeout: float | None, describe: Describe) -> None:
        """Blocks until an operation of the engine is over. Raises its error, and DeadlineError after `timeout`."""


class _Opened(NamedTuple):
    declared: Declared
    spec: KeepSpec


class KeptTensors:
    """Those of one worker. Thread-safe."""

    def __init__(self, worker: KeepsByEngine) -> None:
        """`worker` has them."""
        self._of = weakref.ref(worker)
        self._open: dict[int, _Opened] = {}  # by tensor id
        self._lock = threading.Lock()

    @property
    def _worker(self) -> KeepsByEngine:
        worker = self._of()
        assert worker is not None, "whoever calls has it"
        return worker

    def keep(self, declared: Declared, spec: KeepSpec, initial: int) -> KeptTensor:
        """See worker.keeping.Keeps."""
        check_keep(declared, spec, self._worker.size)
        self.open(declared, spec, _opening_of(declared, spec, initial))
        return EngineKept(self._worker, declared, self)

    def open(self, declared: Declared, spec: KeepSpec, start: Start) -> None:
        """Blocks until it is open by `start`. Raises MismatchError where it is so with another spec."""
        with self._lock:
            known = self._open.setdefault(declared.tensor_id, _Opened(declared, spec)).spec
        if known != spec:
            raise self._differ(declared, known, spec)
        self._begin(declared, start).wait()

    def change(self, declared: Declared, spec: KeepSpec, start: Start) -> KeepHandle:
        """Asks for the spec by `start`. See worker.keeping.KeptTensor."""
        with self._lock:
            known = self._open[declared.tensor_id].spec
            if not spec.is_variant_of(known):
                raise self._differ(declared, known, spec)
            self._open[declared.tensor_id] = _Opened(declared, spec)
        return self._begin(declared, start)

    def _differ(self, declared: Declared, known: KeepSpec, spec: KeepSpec) -> MismatchError:
        name = declared.spec.name
        return MismatchError(f"rank {self._worker.rank} keeps {name!r} as {known}, and asks for {spec}", key=name)

    def _begin(self, declared: Declared, start: Start) -> KeepHandle:
        return EngineKeepHandle(self._worker, self._worker.begin(declared, start), declared)

    def call(self, tensors: Sequence[Declared], text: bytes) -> EngineKeepHandle:
        """See worker.keeping.Keeps."""
        check_together(tensors)
        numbers = [self._worker.begin(one, lambda _, tensor: tensor) for one in tensors]
        operation = self._worker.begin(tensors[0], lambda engine, _: engine.call(numbers, text))
        return EngineKeepHandle(self._worker, operation, tensors[0])

    def ask(self, requests: Sequence[SavingRequest]) -> EngineKeepHandle:
        """See worker.keeping.Keeps."""
        first = requests[0].declared
        asked = [
            (bool(one.behind), self._worker.begin(one.declared, lambda _, tensor: tensor), one.part, list(one.behind),
             one.payload)
            for one in requests
        ]  # fmt: skip
        operation = self._worker.begin(first, lambda engine, _: engine.ask_saving(asked))
        return EngineKeepHandle(self._worker, operation, first)

    def let_go(self, shards: int) -> None:
        """See worker.keeping.Keeps. Any shard tells the others."""
        with self._lock:
            first = next(iter(self._open.values()), None)
        if first is not None:
            self.ask([SavingRequest(first.declared, 0, encode_let_go(shard)) for shard in range(shards)]).wait()

    def forget(self, declared: Declared) -> None:
        """Its name is not used any more."""
        with self._lock:
            self._open.pop(declared.tensor_id, None)


def _opening_of(declared: Declared, spec: KeepSpec, initial: int = 0) -> Start:
    """Opens a tensor, or asks for its policy."""
    root = NOBODY if spec.root is None else spec.root
    value = (initial, declared.spec.nbytes) if initial else (0, 0)
    return lambda engine, tensor: engine.keep(tensor, spec.text, spec.width, root, *value)


class EngineKeepHandle:
    """A contribution to what servers keep, or a read of it. See worker.keeping.KeepHandle."""

    def __init__(self, worker: KeepsByEngine, operation: Any, declared: Declared, contributes: bool = False) -> None:
        self._worker, self._operation, self._name = worker, operation, declared.spec.name
        self._contributes = contributes

    def done(self) -> bool:
        """True once it has ended, well or not; never blocks."""
        return bool(self._operation.done())

    def wait(self, timeout: float | None = None) -> None:
        """Blocks until it has ended. Raises its typed error, DeadlineError after `timeout` seconds; without one,
        StalledError if for the job's stall_timeout this rank has sent nothing, and a contribution is in no version."""
        if timeout is not None or not self._contributes or self.done():
            self._worker.wait_for(self._operation, self._name, timeout, self._describe)
        else:
            self._wait_for_version(self._worker.stall_timeout)

    def _wait_for_version(self, limit: float) -> None:
        while True:
            sent = self._worker.stats()["payload_sent"]
            try:
                return self._worker.wait_for(self._operation, self._name, limit, self._describe)
            except DeadlineError as error:
                if self._worker.stats()["payload_sent"] == sent:  # else it may be on its way still
                    raise self._stalled(limit) from error

    def _stalled(self, limit: float) -> StalledError:
        return StalledError(
            f"rank {self._worker.rank}: no version has been made of a contribution to {self._name!r} for {limit:g} s:"
            " other ranks' are missing; don't wait for it, or pass a timeout",
            rank=self._worker.rank,
            key=self._name,
        )

    def outcomes(self) -> Sequence[Outcome]:
        """Of each partition, in their order. Call it once the operation is done."""
        return [Outcome(Applied(how), version, tuple(ranks)) for how, version, ranks in self._operation.outcomes()]

    def answers(self) -> Sequence[bytes]:
        """To a call, of each shard. Call it once the operation is done."""
        return list(self._operation.answers())

    def _describe(self, since: float) -> Waiting:
        """Not what this rank has started: whom it waits for is its policy's affair, so nobody can tell by its wait that
        ranks wait for each other."""
        return Waiting(name=self._name, round=0, since=since)


class EngineRangeHandle(EngineKeepHandle):
    """A read of a range, or through filters, in flight. See worker.keeping.RangeHandle."""

    def ranges(self) -> Sequence[bytes]:
        """Of each part that was asked for."""
        return list(self._operation.ranges())


def _check_least(declared: Declared, least: int) -> None:
    if not 0 <= least < NOBODY:
        raise InvalidArgumentError(f"{declared.spec.name!r} will have no version {least}")


class EngineKept:
    """One that is open: see worker.keeping.KeptTensor."""

    def __init__(self, worker: KeepsByEngine, declared: Declared, among: KeptTensors) -> None:
        self._worker, self._among = worker, among
        self.declared = declared

    def change(self, spec: KeepSpec) -> KeepHandle:
        """See KeptTensor."""
        return self._among.change(self.declared, spec, _opening_of(self.declared, spec))

    def push(self, address: int, note: Note, *, parts: range | None = None, priority: int | None = None) -> KeepHandle:
        """See KeptTensor. Raises InvalidArgumentError for a note that can't travel."""
        chosen, urgency, written = (
            self._chosen(address, parts),
            self._priority(priority),
            check_note(self.declared, note),
        )
        return self._start(
            lambda engine, tensor: engine.contribute(tensor, address, chosen, urgency, written), contributes=True
        )

    def push_filtered(self, payloads: Sequence[PayloadAt], note: Note, *, priority: int | None = None) -> KeepHandle:
        """See TakesPayloads. Raises InvalidArgumentError for a note that can't travel."""
        urgency, written, each = self._priority(priority), check_note(self.declared, note), list(payloads)
        return self._start(
            lambda engine, tensor: engine.contribute_filtered(tensor, each, urgency, written), contributes=True
        )

    def tick(self, note: Note, *, parts: range | None = None, priority: int | None = None) -> KeepHandle:
        """See KeptTensor. Raises InvalidArgumentError for a note that can't travel."""
        chosen = list(range(len(self.declared.partitions)) if parts is None else parts)
        urgency, written = self._priority(priority), check_note(self.declared, note)
        return self._start(lambda engine, tensor: engine.tick(tensor, chosen, urgency, written), contributes=True)

    def cut_off(self) -> Sequence[int]:
        """See KeptTensor."""
        found: list[int] = self._worker.begin(self.declared, lambda engine, tensor: engine.cut_off(tensor))
        return found

    def pull(
        self, address: int, *, parts: range | None = None, least: int = 0, priority: int | None = None
    ) -> KeepHandle:
        """See KeptTensor."""
        _check_least(self.declared, least)
        chosen, urgency = self._chosen(address, parts), self._priority(priority)
        return self._start(lambda engine, tensor: engine.read(tensor, address, chosen, urgency, least))

    def pull_filtered(self, *, parts: range, least: int = 0, priority: int | None = None) -> RangeHandle:
        """See TakesPayloads."""
        _check_least(self.declared, least)
        chosen, urgency = list(parts), self._priority(priority)
        operation = self._worker.begin(
            self.declared, lambda engine, tensor: engine.read_filtered(tensor, chosen, urgency, least)
        )
        return EngineRangeHandle(self._worker, operation, self.declared)

    def _start(self, start: Start, contributes: bool = False) -> KeepHandle:
        return EngineKeepHandle(self._worker, self._worker.begin(self.declared, start), self.declared, contributes)

    def _chosen(self, address: int, parts: range | None) -> list[int]:
        check_push_pull(self.declared, address, Op.SUM, parts)
        return list(range(len(self.declared.partitions)) if parts is None else parts)

    def _priority(self, given: int | None) -> int:
        return self.declared.spec.priority if given is None else given
