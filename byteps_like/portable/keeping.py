"""Tensors that servers keep, on a portable worker: opens them, contributes to them, reads them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from byteps_like.dtypes import Op
from byteps_like.errors import BytePSLikeError, InvalidArgumentError
from byteps_like.portable.handle import (
    PortableCallHandle,
    PortableHandle,
    PortableKeepHandle,
    PortableRangeHandle,
    Waited,
)
from byteps_like.portable.pump import KeyCall, KeyCalls
from byteps_like.portable.store_calls import Answered
from byteps_like.portable.store_flow import StoreFlow
from byteps_like.portable.store_lane import NOBODY, LanePull, LanePush, LaneSpec, Opened, Settled, tick
from byteps_like.portable.transfer import memory_at
from byteps_like.wire.frame import FrameType
from byteps_like.wire.note import Note
from byteps_like.worker.api import Declared, Partition
from byteps_like.worker.keeping import (
    KeepHandle,
    KeepSpec,
    Outcome,
    PayloadAt,
    RangeHandle,
    SavingRequest,
    check_note,
)
from byteps_like.worker.local import check_push_pull
from byteps_like.worker.tables import TableShards


class StoresWorker(Waited, Protocol):
    """What the operations need of their worker."""

    def use_stores(self, handle: PortableHandle, calls: KeyCalls) -> None:
        """Starts an operation on store keys. Raises the job's error."""

    def ended(self, handle: PortableHandle) -> None:
        """It has ended. On the worker's own thread."""

    def is_cut_off(self, part: Partition) -> bool:
        """Whether its server has enough without this rank's next contribution. Raises the job's error."""

    def change(self, declared: Declared, spec: KeepSpec, start: Callable[[], KeepHandle]) -> KeepHandle:
        """Asks for the spec by `start`. See worker.keeping.KeptTensor."""


def open_kept(worker: StoresWorker, declared: Declared, spec: KeepSpec, initial: int) -> PortableKeepHandle:
    """Starts to open a tensor's keys, or to change their policy; the handle is done when all have a value, or when all
    ranks have asked. `initial` is copied."""
    whole = memoryview(bytes(memory_at(initial, declared.spec.nbytes))) if initial else None

    def opens(part: Partition, opened: Opened) -> Callable[[StoreFlow], None]:
        value = None if whole is None else whole[part.offset : part.offset + part.nbytes]
        return lambda flow: flow.open(_lane_spec(declared, part, spec), value, opened)

    return open_parts(worker, declared.spec.name, declared.partitions, opens)


def open_parts(
    worker: StoresWorker, name: str, parts: Sequence[Partition], opens: Callable[[Partition, Opened], KeyCall]
) -> PortableKeepHandle:
    """Starts to open some keys, each by what `opens` says; the handle is done when all are."""
    handle = PortableKeepHandle(name, len(parts), worker)

    def opened(error: BytePSLikeError | None) -> None:
        if error is None:
            handle.land()
        else:
            handle.fail(error)
        if handle.done():
            worker.ended(handle)

    if parts:
        worker.use_stores(handle, [(part.server, opens(part, opened)) for part in parts])
    return handle


def _lane_spec(declared: Declared, part: Partition, spec: KeepSpec) -> LaneSpec:
    root = NOBODY if spec.root is None else spec.root
    return LaneSpec(part.key, part.shard, declared.spec.dtype, part.nbytes, spec.width, root, spec.text)


def call_kept(worker: StoresWorker, tensors: Sequence[Declared], text: bytes) -> PortableCallHandle:
    """Starts a call on tensors that lie together: at each of their shards."""
    shards: dict[tuple[int, int], list[int]] = {}
    for number, part in enumerate(tensors[0].partitions):
        shards.setdefault((part.server, part.shard), []).append(number)

    def calls(parts: list[int]) -> Callable[[Answered], KeyCall]:
        keys = [tensor.partitions[part].key for part in parts for tensor in tensors]
        count = len(tensors[0].partitions)
        return lambda answered: lambda flow: flow.call(keys, len(parts), count, text, answered)

    return ask_each(worker, tensors[0].spec.name, [(server, calls(parts)) for (server, _), parts in shards.items()])


def call_table(worker: StoresWorker, shards: TableShards, text: bytes) -> PortableCallHandle:
    """Starts a call on a table: at each of its shards."""
    every = shards.declared.partitions

    def calls(first: int) -> Callable[[Answered], KeyCall]:
        return lambda answered: lambda flow: flow.call([every[first].key], 1, len(every), text, answered)

    return ask_each(worker, shards.declared.spec.name, [(every[one].server, calls(one)) for one in shards.firsts])


def ask_kept(worker: StoresWorker, requests: Sequence[SavingRequest]) -> PortableCallHandle:
    """Starts requests about what is saved, each to one shard."""

    def asks(one: SavingRequest) -> tuple[int, Callable[[Answered], KeyCall]]:
        part = one.declared.partitions[one.part]
        kind = FrameType.CUT if one.behind else FrameType.STATE
        keys = list(one.behind) or [part.key]
        return part.server, lambda answered: lambda flow: flow.ask(kind, keys, one.payload, answered)

    return ask_each(worker, requests[0].declared.spec.name, [asks(one) for one in requests])


def ask_each(
    worker: StoresWorker, name: str, asked: Sequence[tuple[int, Callable[[Answered], KeyCall]]]
) -> PortableCallHandle:
    """Starts what shards answer, each at its server."""
    handle = PortableCallHandle(name, len(asked), worker)

    def answered(number: int, error: BytePSLikeError | None, found: bytes) -> None:
        handle.answer(number, error, found)
        if handle.done():
            worker.ended(handle)

    worker.use_stores(
        handle,
        [(server, ask(partial(answered, number))) for number, (server, ask) in enumerate(asked)],
    )
    return handle


def start_ticks(
    worker: StoresWorker, name: str, parts: Sequence[Partition], note: Note, priority: int
) -> PortableKeepHandle:
    """Contributes nothing to the keys of these."""
    handle = PortableKeepHandle(name, len(parts), worker)

    def settled(number: int, outcome: Outcome) -> None:
        handle.settle(number, outcome)
        if handle.done():
            worker.ended(handle)

    def ticks(key: int, number: int) -> KeyCall:
        return lambda flow: flow.push(key, tick(note, partial(settled, number), priority))

    if parts:
        worker.use_stores(handle, [(part.server, ticks(part.key, number)) for number, part in enumerate(parts)])
    return handle


class _Operation(Protocol):
    def __call__(self, flow: StoreFlow, *, key: int, memory: memoryview, settled: Settled) -> None: ...


class PortableKept:
    """One that is open: see worker.keeping.KeptTensor."""

    def __init__(self, worker: StoresWorker, declared: Declared) -> None:
        self.declared = declared
        self._worker = worker

    def change(self, spec: KeepSpec) -> KeepHandle:
        """See KeptTensor."""
        return self._worker.change(self.declared, spec, lambda: open_kept(self._worker, self.declared, spec, 0))

    def push(self, address: int, note: Note, *, parts: range | None = None, priority: int | None = None) -> KeepHandle:
        """See KeptTensor. Raises InvalidArgumentError for a note that can't travel."""
        check_note(self.declared, note)
        urgency = self._priority(priority)

        def push(flow: StoreFlow, *, key: int, memory: memoryview, settled: Settled) -> None:
            flow.push(key, LanePush(memory, note, settled, urgency))

        return self._start(address, parts, push)

    def push_filtered(self, payloads: Sequence[PayloadAt], note: Note, *, priority: int | None = None) -> KeepHandle:
        """See TakesPayloads. Raises InvalidArgumentError for a note that can't travel."""
        check_note(self.declared, note)
        urgency = self._priority(priority)

        def push(flow: StoreFlow, *, key: int, memory: memoryview, settled: Settled) -> None:
            flow.push(key, LanePush(memory, note, settled, urgency))

        places = [(self.declared.partitions[one.part], memory_at(one.address, one.nbytes)) for one in payloads]
        return self._begin(places, push)

    def tick(self, note: Note, *, parts: range | None = None, priority: int | None = None) -> KeepHandle:
        """See KeptTensor. Raises InvalidArgumentError for a note that can't travel."""
        check_note(self.declared, note)
        every = self.declared.partitions
        urgency = self._priority(priority)
        return start_ticks(self._worker, self.declared.spec.name,
                           every if parts is None else [every[part] for part in parts], note, urgency)  # fmt: skip

    def cut_off(self) -> Sequence[int]:
        """See KeptTensor."""
        return [number for number, part in enumerate(self.declared.partitions) if self._worker.is_cut_off(part)]

    def pull(
        self, address: int, *, parts: range | None = None, least: int = 0, priority: int | None = None
    ) -> KeepHandle:
        """See KeptTensor."""
        self._check_least(least)
        urgency = self._priority(priority)

        def pull(flow: StoreFlow, *, key: int, memory: memoryview, settled: Settled) -> None:
            flow.pull(key, LanePull(memory, settled, least, urgency))

        return self._start(address, parts, pull)

    def pull_filtered(self, *, parts: range, least: int = 0, priority: int | None = None) -> RangeHandle:
        """See TakesPayloads."""
        self._check_least(least)
        urgency = self._priority(priority)
        pulls = [LanePull(memoryview(b""), lambda _: None, least, urgency, filtered=True) for _ in parts]
        handle = PortableRangeHandle(self.declared.spec.name, pulls, self._worker)

        def pull(flow: StoreFlow, *, key: int, number: int) -> None:
            pulls[number].settled = partial(self._settled, handle, number)
            flow.pull(key, pulls[number])

        chosen = [self.declared.partitions[part] for part in parts]
        self._worker.use_stores(
            handle, [(part.server, partial(pull, key=part.key, number=number)) for number, part in enumerate(chosen)]
        )
        return handle

    def _check_least(self, least: int) -> None:
        if not 0 <= least < NOBODY:
            raise InvalidArgumentError(f"{self.declared.spec.name!r} will have no version {least}")

    def _start(self, address: int, parts: range | None, operation: _Operation) -> KeepHandle:
        check_push_pull(self.declared, address, Op.SUM, parts)
        every = self.declared.partitions
        chosen = every if parts is None else [every[part] for part in parts]
        return self._begin([(part, memory_at(address + part.offset, part.nbytes)) for part in chosen], operation)

    def _begin(self, places: Sequence[tuple[Partition, memoryview]], operation: _Operation) -> KeepHandle:
        """The operation on each of these partitions, with its memory."""
        handle = PortableKeepHandle(self.declared.spec.name, len(places), self._worker)
        calls = [
            (
                part.server,
                partial(operation, key=part.key, memory=memory, settled=partial(self._settled, handle, number)),
            )
            for number, (part, memory) in enumerate(places)
        ]
        self._worker.use_stores(handle, calls)
        return handle

    def _settled(self, handle: PortableKeepHandle, number: int, outcome: Outcome) -> None:
        handle.settle(number, outcome)
        if handle.done():
            self._worker.ended(handle)

    def _priority(self, given: int | None) -> int:
        return self.declared.spec.priority if given is None else given
