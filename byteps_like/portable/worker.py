"""PortableWorker: the Worker protocol of worker.api in pure Python, over the servers' portable doors."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from byteps_like.collectives.api import Group
from byteps_like.control.audience import Audience
from byteps_like.control.calls.door_keys import DoorKeys
from byteps_like.control.members.seats import Waiting
from byteps_like.control.types import EventKind, WatchEvent
from byteps_like.dtypes import Op
from byteps_like.errors import (
    BytePSLikeError,
    DeadlineError,
    InvalidArgumentError,
    MismatchError,
    ShutdownError,
    from_code,
)
from byteps_like.portable.channel import ChannelOptions
from byteps_like.portable.handle import PortableHandle
from byteps_like.portable.keeping import PortableKept, ask_kept, call_kept, open_kept
from byteps_like.portable.pump import KeyCalls, Pump
from byteps_like.portable.tables import PortableKeptTable, open_table
from byteps_like.portable.transfer import Transfer, memory_at
from byteps_like.wire.door import Hello
from byteps_like.worker.api import (
    Answer,
    Attends,
    Declared,
    Dismissal,
    Feedback,
    Handle,
    Meeting,
    Partition,
    TensorSpec,
)
from byteps_like.worker.catalogue import Catalogue
from byteps_like.worker.keeping import (
    CallHandle,
    KeepHandle,
    KeepSpec,
    KeptTensor,
    SavingRequest,
    check_keep,
    check_together,
)
from byteps_like.worker.local import CompletedHandle, PrivateMemory, check_feedback, check_push_pull, refuse_codec
from byteps_like.worker.standing import Standing, Stands
from byteps_like.worker.tables import KeptTable, TableShards, TableSpec
from byteps_like.worker.verdict import Verdict

logger = logging.getLogger(__name__)


class Control(Protocol):
    """What a worker asks of the control plane (control.client.ControlClient)."""

    def declare(self, specs: list[TensorSpec]) -> list[Declared]:
        """Agrees on names with all ranks."""

    def barrier(self, name: str, timeout: float) -> None:
        """Waits for all ranks."""

    def report(self, error: BytePSLikeError, epoch: int) -> None:
        """Tells everybody of a failure that this member saw in this epoch."""

    def waiting(self, what: Waiting | None) -> None:
        """What this rank is blocked on."""

    def meet(self, waiting: Sequence[Meeting], answer: Answer | None = None) -> None:
        """Tells what this rank has waited for longer than a moment."""

    def on_event(self, callback: Callable[[WatchEvent], None]) -> None:
        """Registers for the events of the epoch."""

    def leave(self) -> None:
        """Ends the membership in order."""

    @property
    def changes(self) -> int:
        """How often it was said that others wait to join."""

    @property
    def dismissal(self) -> Dismissal | None:
        """That this worker was asked to leave, if it was."""


@dataclass(frozen=True)
class PortableOptions:
    """Who this worker is, (name, url, member number) of every server's door in the order of ranks, and the limits.

    `patience` is how many seconds a door may be out of reach; `segment` is in bytes per message, `credit` in bytes in
    flight per server.
    """

    job: str
    keys: DoorKeys
    incarnation: bytes
    epoch: int
    standing: Standing
    doors: tuple[tuple[str, str, int], ...]
    seal_key: bytes = b""
    stall_timeout: float = 120.0
    segment: int = 128 << 10
    credit: int = 8 << 20
    patience: float = 10.0

    def channels(self) -> list[ChannelOptions]:
        """The options of each server's channel."""
        return [
            ChannelOptions(name, url, self.keys, self._hello(number), self.segment, self.credit, self.patience)
            for name, url, number in self.doors
        ]

    def _hello(self, server: int) -> Hello:
        own = self.standing
        return Hello(self.job, self.incarnation, self.epoch, own.member, server, own.size)


class PortableWorker(Stands):
    """One member of the world, with one background thread. Thread-safe; see worker.api.Worker for the calls.

    Construction blocks until all doors have opened; RefusedError or PeerLostError if one doesn't.
    """

    route = "server"

    def __init__(self, options: PortableOptions, client: Control) -> None:
        self._standing = options.standing
        self.stall_timeout, self.seal_key = options.stall_timeout, options.seal_key
        self._client, self._epoch = client, options.epoch
        self._catalogue = Catalogue(client.declare)
        self._lock = threading.Lock()
        self._rounds: Counter[int] = Counter()
        self._started: dict[str, tuple[int, PortableHandle]] = {}  # name -> number and handle of the newest
        self._kept: dict[int, KeepSpec] = {}  # by tensor id
        self._verdict = Verdict(self, self._catalogue.name_keys)
        self._closed = False
        self._attending: Audience[Attends] = Audience()
        self._pump = Pump(options.channels(), self._on_lost, self._warn)
        self.last_progress = self._pump.last_progress
        try:
            self._pump.wait_open()
        except BytePSLikeError:
            self.close()
            raise
        client.on_event(self._on_control_event)

    @property
    def standing(self) -> Standing:
        """See worker.api.Worker."""
        return self._standing

    def declare(self, specs: Sequence[TensorSpec]) -> list[Declared]:
        """See worker.api.Worker.declare."""
        self._raise_error()
        for spec in specs:
            refuse_codec(spec, "in the portable worker, which lacks the native core")
        return self._catalogue.declare(specs)

    def allocate(self, nbytes: int) -> PrivateMemory:
        """Memory for an arena; private, since no server maps it."""
        self._raise_error()
        return PrivateMemory(nbytes)

    empty_shared = allocate

    def group(self, name: str, ranks: Sequence[int] | None = None) -> Group:  # noqa: ARG002
        """Always raises InvalidArgumentError: collectives among workers need the native core."""
        raise InvalidArgumentError(
            f"group {name!r}: the portable worker has no collectives (process sets, allgather, alltoall, ...), only"
            " push_pull and broadcast through servers; install the native core on all ranks"
        )

    def push_pull(
        self,
        declared: Declared,
        address: int,
        op: Op,
        *,
        root: int = 0,
        parts: range | None = None,
        priority: int | None = None,
    ) -> Handle:
        """See worker.api.Worker.push_pull."""
        name = declared.spec.name
        check_push_pull(declared, address, op, parts)
        if op is Op.BROADCAST and not 0 <= root < self.size:
            raise InvalidArgumentError(f"broadcast of {name!r} from rank {root} in a world of {self.size}")
        chosen = declared.partitions if parts is None else [declared.partitions[part] for part in parts]
        handle = PortableHandle(name, len(chosen), self)
        template = Transfer(
            declared.spec.dtype, op, root, declared.spec.priority if priority is None else priority,
            contributes=op is not Op.BROADCAST or root == self.rank, handle=handle,
        )  # fmt: skip
        self._verdict.check()
        with self._lock:
            self._check_open()
            if not chosen:
                return CompletedHandle()
            self._started[name] = (self._rounds[declared.partitions[0].key], handle)
            self._pump.submit(handle, [self._transfer(template, part, address) for part in chosen])
        return handle

    def keep(self, declared: Declared, spec: KeepSpec, initial: int = 0) -> KeptTensor:
        """See worker.keeping.Keeps. Raises MismatchError, too, for a tensor that this rank keeps in another way, and
        InvalidArgumentError on the root when it gives no value and servers have none."""
        check_keep(declared, spec, self.size)
        self._check_kept(declared, spec)
        open_kept(self, declared, spec, initial).wait()
        return PortableKept(self, declared)

    def keep_table(self, declared: Declared, spec: TableSpec) -> KeptTable:
        """See worker.tables.KeepsTables. Raises MismatchError, too, as `keep`."""
        self._check_kept(declared, spec)
        shards = TableShards(declared)
        open_table(self, shards, spec).wait()
        return PortableKeptTable(self, shards)

    def _check_kept(self, declared: Declared, spec: KeepSpec) -> None:
        self._raise_error()
        with self._lock:
            known = self._kept.setdefault(declared.tensor_id, spec)
        if known != spec:
            raise self._differ(declared, known, spec)

    def change(self, declared: Declared, spec: KeepSpec, start: Callable[[], KeepHandle]) -> KeepHandle:
        """See portable.keeping.StoresWorker."""
        self._raise_error()
        with self._lock:
            known = self._kept[declared.tensor_id]
            if not spec.is_variant_of(known):
                raise self._differ(declared, known, spec)
            self._kept[declared.tensor_id] = spec
        return start()

    def call(self, tensors: Sequence[Declared], text: bytes) -> CallHandle:
        """See worker.keeping.Keeps."""
        check_together(tensors)
        return call_kept(self, tensors, text)

    def ask(self, requests: Sequence[SavingRequest]) -> CallHandle:
        """See worker.keeping.Keeps."""
        self._raise_error()
        return ask_kept(self, requests)

    @property
    def lasting(self) -> None:
        """What servers keep is of one world in jobs with portable workers."""

    def let_go(self) -> None:
        """Nothing is ever set aside."""

    def _differ(self, declared: Declared, known: KeepSpec, spec: KeepSpec) -> MismatchError:
        name = declared.spec.name
        return MismatchError(f"rank {self.rank} keeps {name!r} as {known}, and asks for {spec}", key=name)

    def compensate(self, declared: Declared, feedback: Feedback | None) -> None:
        """Raises InvalidArgumentError: no tensor of a portable worker has a codec."""
        check_feedback(declared, feedback)

    def rescale(self, declared: Declared, factor: float) -> None:
        """Does nothing: no tensor is coded."""

    def placed(self, declared: Declared, follows: bool = True) -> Declared:  # noqa: ARG002 - nothing moves here
        """`declared`. See worker.api.Worker.placed."""
        return declared

    def meet(self, waiting: Sequence[Meeting], answer: Answer | None = None) -> None:
        """See worker.api.Meets."""
        self._client.meet(waiting, answer)

    def attend(self, who: Attends) -> None:
        """`who` is asked only: where there are portable workers, the job ends when ranks disagree."""
        self._attending.join(who)

    def note_route(self, name: str) -> None:
        """Portable workers publish no counters."""

    def barrier(self, timeout: float | None = None) -> None:
        """Blocks until every rank has come to its barrier."""
        self._raise_error()
        try:
            self._client.barrier("worker", self.stall_timeout if timeout is None else timeout)
        except DeadlineError:
            raise
        except BytePSLikeError:
            self._raise_error()
            raise

    def close(self) -> None:
        """Leaves the job in order; operations in flight fail with ShutdownError. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._pump.close()
        self._client.leave()

    def stats(self) -> dict[str, int]:
        """The counters of worker.api; bytes are those of messages, before ZeroMQ's own framing and encryption."""
        return self._pump.counters()

    def fail(self, error: BytePSLikeError) -> None:
        """The scheduler says that the job has failed: all handles and all later calls raise `error`. Never blocks."""
        self._verdict.told(error)
        self._pump.fail(error)

    # What handles and kept tensors need (portable.handle.Waited, portable.keeping.StoresWorker)

    def use_stores(self, handle: PortableHandle, calls: KeyCalls) -> None:
        """Starts an operation on store keys. Raises the job's error."""
        self._verdict.check()
        with self._lock:
            self._check_open()
            self._pump.use_stores(handle, calls)

    def is_cut_off(self, part: Partition) -> bool:
        """See portable.keeping.StoresWorker."""
        self._raise_error()
        return self._pump.is_cut_off(part.server, part.key)

    def ended(self, handle: PortableHandle) -> None:
        """It has ended. On the pump's thread."""
        self._pump.ended(handle)

    def report_waiting(self, name: str, since: float) -> None:
        """Tells the scheduler what this rank is blocked on."""
        with self._lock:
            in_flight = {key: number for key, (number, handle) in self._started.items() if not handle.done()}
        self._client.waiting(Waiting(name=name, round=in_flight.get(name, 0), since=since, started=in_flight))

    def report_keeping(self, name: str, since: float) -> None:
        """Tells the scheduler, too. Not what this rank has started: whom it waits for is its policy's affair, so nobody
        can tell by its wait that ranks wait for each other."""
        self._client.waiting(Waiting(name=name, round=0, since=since))

    def stopped_waiting(self) -> None:
        """Tells the scheduler that it isn't any more."""
        self._client.waiting(None)

    def job_error(self, error: BytePSLikeError) -> BytePSLikeError:
        """The job's error where there is one, the scheduler's if possible, else `error`; with names for keys."""
        return error if isinstance(error, ShutdownError) else self._verdict.explained(error)

    def _transfer(self, template: Transfer, part: Partition, address: int) -> Transfer:
        number = self._rounds[part.key]
        self._rounds[part.key] = (number + 1) & 0xFFFFFFFF
        return template.of(part, number, memory_at(address + part.offset, part.nbytes))

    def _raise_error(self) -> None:
        self._verdict.check()
        self._check_open()

    def _check_open(self) -> None:
        if self._closed:
            raise ShutdownError("this worker has been shut down; call init() again")

    def _name_keys(self, text: str) -> str:
        return self._catalogue.name_keys(text)

    def _warn(self, text: str) -> None:
        logger.warning("rank %d: %s", self.rank, self._name_keys(text))

    def _on_lost(self, error: BytePSLikeError) -> None:
        text = f"rank {self.rank}: {self._name_keys(str(error))}"
        met = from_code(error.code, text, rank=self.rank, peer=error.peer)
        logger.error("%s", met)
        self._verdict.met(met)
        self._client.report(met, self._epoch)

    def changes(self) -> int:
        """See worker.api.HearsOfChanges."""
        return self._client.changes

    def dismissal(self) -> Dismissal | None:
        """See worker.api.HearsOfChanges."""
        return self._client.dismissal

    def _on_control_event(self, event: WatchEvent) -> None:
        if event.kind in (EventKind.WARNING, EventKind.LOST):
            self._warn(event.text)
        elif event.question is not None:
            question = event.question
            self._attending.tell(lambda who: who.asked(question))
        elif event.kind is EventKind.FAILED:
            self.fail(event.error or BytePSLikeError(event.text))
