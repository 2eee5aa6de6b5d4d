"""NativeWorker: the worker over the C++ engine."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import byteps_like._core as _core
from byteps_like.collectives.api import Group
from byteps_like.collectives.communicator import Communicator, Peer
from byteps_like.config import Config
from byteps_like.control.audience import Audience
from byteps_like.control.calls.client import ControlClient
from byteps_like.control.calls.secret import seal_key
from byteps_like.control.hosts.address import own_host
from byteps_like.control.hosts.card import open_meter
from byteps_like.control.hosts.rdma import server_urls
from byteps_like.control.members.seats import Waiting
from byteps_like.control.placing.placement import least_segment, slowest_card
from byteps_like.control.placing.racks import Ways, owner_weights, racks_of
from byteps_like.control.placing.weights import hosts_of
from byteps_like.control.types import EventKind, Member, View, WatchEvent
from byteps_like.dtypes import Op
from byteps_like.errors import BytePSLikeError, Code, DeadlineError, PeerLostError, from_code
from byteps_like.timeline.recorder import recorder
from byteps_like.worker.api import (
    Answer,
    Attends,
    Declared,
    Dismissal,
    Feedback,
    KernelsOf,
    Links,
    Meeting,
    MissesRanks,
    Newcomer,
    OnGpu,
    Partition,
    Places,
    Share,
    SharedMemory,
    TensorSpec,
)
from byteps_like.worker.cards import ASSUMED, Cards, NicLoad
from byteps_like.worker.catalogue import Catalogue
from byteps_like.worker.engine.kept import KeptTensors, Start
from byteps_like.worker.engine.kept_table import EngineKeptTable, opening_of
from byteps_like.worker.engine.moves import Moves
from byteps_like.worker.engine.shares import Shared, part_of, shared
from byteps_like.worker.engine.step_log import Absence, StepLog
from byteps_like.worker.engine.waiting import Describe, wait_for
from byteps_like.worker.keeping import CallHandle, KeepSpec, KeptTensor, Lasting, SavingRequest
from byteps_like.worker.local import CompletedHandle, check_feedback, check_push_pull
from byteps_like.worker.standing import Standing, Stands
from byteps_like.worker.tables import KeptTable, TableShards, TableSpec
from byteps_like.worker.verdict import Verdict

logger = logging.getLogger(__name__)

_POLL = 1.0  # seconds between two looks whether to end, and two reports of the counters


class NativeHandle:
    """One operation of the engine."""

    def __init__(self, worker: NativeWorker, operation: Any, declared: Declared) -> None:
        self._worker = worker
        self._operation = operation
        self._declared = declared
        self._step = worker.steps.now

    def give_up(self, error: BytePSLikeError) -> None:
        """See worker.api.Handle."""
        self._worker.give_up(self._operation, error)

    def done(self) -> bool:
        """True once the result has landed or the operation failed; never blocks."""
        return bool(self._operation.done())

    def wait(self, timeout: float | None = None) -> None:
        """Blocks until the result has landed. Raises the operation's typed error, DeadlineError after `timeout`."""
        self._worker.wait_for(self._operation, self._declared.spec.name, timeout)
        if absences := self._operation.absences:
            self._worker.note_absences(self._step, self._declared, absences)

    def wait_on(self, stream: int) -> None:
        """What comes later in `stream`, a CUstream of the worker's GPU, waits for the result; the host does not, unless
        this driver has no such waits. Raises the operation's typed error if it has failed; if it fails later the stream
        goes on, and the next call raises it.
        """
        if not self._worker.wait_on_stream(self._operation, stream):
            self.wait()


class NativeWorker(Stands):
    """A member of the job, as of `view`, connected to all its servers. Thread-safe; see worker.api for the calls."""

    route = "server"

    def __init__(self, config: Config, client: ControlClient, view: View, communicator: Communicator) -> None:
        own_host_id = communicator.own.host_id
        self._client = client
        self._communicator = communicator
        self._settings = config
        self._take_up(view)
        self._catalogue = Catalogue(client.declare)
        self._tensors: dict[int, int] = {}  # tensor id of the job -> of the engine
        self._shared: dict[int, tuple[int, Shared]] = {}  # the same, cut into the shares of this host's ranks
        self._moves = Moves()
        self._kept = KeptTensors(self)
        # Where there is a server on this host, it looks at the card.
        beside = any(server.host_id == own_host_id for server in view.servers)
        self._epoch = view.number
        self.steps = StepLog(self._epoch)
        """See worker.engine.step_log.LogsSteps."""
        self._meter = None if beside or not view.servers else open_meter(config, own_host(config))
        self._started: dict[str, tuple[int, Any]] = {}  # name -> its newest round, and the operation
        self._routes: dict[str, int] = {}
        self._attending: Audience[Attends] = Audience()
        self._missing: Audience[MissesRanks] = Audience()
        self._gpu: tuple[str, KernelsOf] | None = None  # its uuid
        self._lock = threading.Lock()
        self._verdict = Verdict(self, self._catalogue.name_keys)
        self._closed = False
        self._direct: set[int] = set()  # ids of tensors that go to their owners, since servers keep them
        shards = [
            (server.rank, shard, server_urls(config, server, own_host_id), server.number)
            for server in view.servers
            if not server.rack or (self._ways is not None and server in self._ways.rack.aggregators)
            for shard in range(server.shards)
        ]
        self._channel = {(server, shard): index for index, (server, shard, *_) in enumerate(shards)}
        self._engine = _core.Engine(
            job=view.job,
            secret=client.secret,
            incarnation=view.incarnation,
            epoch=view.number,
            rank=self.rank,
            member=client.member.number,
            world_size=view.size,
            shards=shards,
            segment_bytes=config.segment_bytes,
            least_segment=least_segment(slowest_card(view)),
            credit_bytes=config.credit_bytes,
            connect_timeout=5.0,
            stall_warning=config.stall_warning,
            stall_timeout=config.stall_timeout,
            kernel_queue_bytes=config.kernel_queue_bytes,
            codec_threads=config.codec_threads,
            local_workers=self.local_size,
            outlives_servers=view.outlives_servers,
        )
        self.lasting = lasting_of(view)
        """See worker.keeping.Keeps."""
        self._events = threading.Thread(target=self._pump_events, name="byteps_like-events", daemon=True)
        self._events.start()
        client.on_event(self._on_control_event)
        client.publish(self._counters)
        recorder.add_member(self.rank, self._names)

    def _take_up(self, view: View) -> None:
        """`view` is in force: all that follows from it."""
        config, client = self._settings, self._client
        self._standing = view.standing(client.member.number).as_told(config.local_rank, config.local_size)
        self.seal_key = seal_key(client.secret, view.incarnation, view.number)
        self.cards = cards_of(view)
        """Those that its gradients travel between."""
        own = view.workers[self._standing.rank]
        rack = racks_of(view).get(own.rack) if own.rack else None
        self._ways = Ways(view, rack) if rack is not None else None
        hosts = {one.host_id for one in [*view.workers, *view.servers]}
        native = all(worker.native for worker in view.workers)
        self._places = Places(
            len(hosts), len(view.servers), native, copies=view.outlives_servers, finishes=view.finishes_sums
        )
        peers = [_peer(member) for member in view.workers]
        self._communicator.join(view.number, self.rank, peers, view.incarnation)

    # --- what others call ---

    @property
    def standing(self) -> Standing:
        """See worker.api.Worker."""
        return self._standing

    def declare(self, specs: Sequence[TensorSpec]) -> list[Declared]:
        """See worker.api.Worker.declare."""
        self._verdict.check()
        declared = self._catalogue.declare(specs)
        with self._lock:
            for item in declared:
                if item.tensor_id not in self._tensors and not self._moves.has_moved(item):
                    self._tensors[item.tensor_id] = self._declare(item)
        return declared

    def allocate(self, nbytes: int) -> SharedMemory:
        """Memory that servers on this host sum in place; others read it straight into the socket."""
        buffer = self._communicator.empty_shared(nbytes)
        self._engine.register(buffer)
        return buffer

    def empty_shared(self, nbytes: int) -> SharedMemory:
        """See worker.api.Worker.empty_shared."""
        self._verdict.check()
        return self._communicator.empty_shared(nbytes)

    def group(self, name: str, ranks: Sequence[int] | None = None) -> Group:
        """See worker.api.Worker.group."""
        self._verdict.check()
        return self._communicator.group(name, ranks)

    def push_pull(
        self,
        declared: Declared,
        address: int,
        op: Op,
        *,
        root: int = 0,
        parts: range | None = None,
        priority: int | None = None,
        gpu: OnGpu | None = None,
        share: Share | None = None,
    ) -> NativeHandle | CompletedHandle:
        """See worker.api.Worker.push_pull. With `gpu`, the result lands there, and `address` is the mirror's: memory of
        `allocate`, page-locked. With `share`, see worker.api.MovesShares; always the same one."""
        self._verdict.check()
        if parts is None:
            declared = self.placed(declared)
        check_push_pull(declared, address, op, parts)
        chosen = parts if parts is not None else range(len(declared.partitions))
        if len(chosen) == 0:
            return CompletedHandle()
        wanted = declared.spec.priority if priority is None else priority
        movable = chosen.start == 0 and self._moves.begin(declared)
        tensor, going = self._tensors[declared.tensor_id], chosen
        if share is not None:
            tensor, shares = self._in_shares(declared, share)
            going = shares.of(chosen)
        try:
            operation = self._engine.submit(
                tensor, address, going.start, going.stop, int(op), root, wanted, movable, *_placed_on(gpu)
            )
        except BytePSLikeError as error:
            raise self._explained(error) from None
        if chosen.start == 0:
            self._moves.began(declared, operation)
            newest = self._started.get(declared.spec.name, (-1, None))[0]
            self._started[declared.spec.name] = (newest + 1, operation)
        return NativeHandle(self, operation, declared)

    def keep(self, declared: Declared, spec: KeepSpec, initial: int = 0) -> KeptTensor:
        """See worker.keeping.Keeps."""
        self._take_to_owners(declared)
        return self._kept.keep(declared, spec, initial)

    def keep_table(self, declared: Declared, spec: TableSpec) -> KeptTable:
        """See worker.tables.KeepsTables."""
        self._take_to_owners(declared)
        shards = TableShards(declared)
        self._kept.open(declared, spec, opening_of(shards, spec))
        return EngineKeptTable(self, shards, self._kept)

    def call(self, tensors: Sequence[Declared], text: bytes) -> CallHandle:
        """See worker.keeping.Keeps."""
        return self._kept.call(tensors, text)

    def ask(self, requests: Sequence[SavingRequest]) -> CallHandle:
        """See worker.keeping.Keeps."""
        return self._kept.ask(requests)

    def let_go(self) -> None:
        """See worker.keeping.Keeps."""
        if self.lasting is not None:
            self._kept.let_go(len(self.lasting.shards))

    def begin(self, declared: Declared, start: Start) -> Any:
        """See worker.kept.KeepsByEngine."""
        self._verdict.check()
        try:
            return start(self._engine, self._tensors[declared.tensor_id])
        except BytePSLikeError as error:
            raise self._explained(error) from None

    def compensate(self, declared: Declared, feedback: Feedback | None) -> None:
        """See worker.api.Worker.compensate."""
        check_feedback(declared, feedback)
        known = feedback or Feedback()
        tensor = self._tensor(declared)
        self._engine.set_feedback(
            tensor, known.residual, known.momentum, known.mu, known.nesterov, known.masked, known.on_gpu
        )

    def rescale(self, declared: Declared, factor: float) -> None:
        """See worker.api.Worker.rescale."""
        self._engine.rescale(self._tensor(declared), factor)

    def use_gpu(self, gpu: Any, kernels: KernelsOf) -> bool:
        """See worker.api.UsesGpu."""
        with self._lock:
            if self._gpu is None:
                self._engine.use_gpu(gpu)
                self._gpu = gpu.uuid, kernels
            return bool(self._gpu[0] == gpu.uuid)

    def encodes_on_gpu(self, declared: Declared) -> bool:
        """See worker.api.UsesGpu."""
        return bool(self._engine.encodes_on_gpu(self._tensor(declared)))

    def moves_shares(self) -> bool:
        """See worker.api.MovesShares: portable workers can't."""
        return self._places.encode

    def _in_shares(self, declared: Declared, share: Share) -> tuple[int, Shared]:
        with self._lock:
            known = self._shared.get(declared.tensor_id)
            if known is None:
                cut = shared(declared, share)
                dtype, parts, owners = (
                    int(declared.spec.dtype),
                    self._parts(cut.parts, racked=True),
                    self._owners(cut.parts),
                )
                tensor = self._engine.declare(dtype, parts, absent=cut.absent, owners=owners)
                known = self._shared[declared.tensor_id] = tensor, cut
            return known

    def _take_to_owners(self, declared: Declared) -> None:
        """No aggregator keeps values: the tensor goes to its owners, before its first use."""
        with self._lock:
            if self._ways is None or declared.tensor_id in self._direct:
                return
            self._direct.add(declared.tensor_id)
            before = self._tensors[declared.tensor_id]
            self._tensors[declared.tensor_id] = self._declare(declared)
        self._engine.retire(before)

    def _tensor(self, declared: Declared) -> int:
        """Its id in the engine, wherever it has moved."""
        return self._tensors[self.placed(declared, follows=False).tensor_id]

    def _declare(self, declared: Declared) -> int:
        spec, gpu = declared.spec, self._gpu
        if gpu is not None and spec.codec and (source := _core.gpu_source(spec.codec_spec.partition(":")[0])):
            self._engine.add_kernels(dict(gpu[1](["feedback", source])))
        racked = not spec.codec and declared.tensor_id not in self._direct
        parts = self._parts(declared.partitions, racked)
        owners = self._owners(declared.partitions) if racked else []
        return int(
            self._engine.declare(int(spec.dtype), parts, spec.codec_spec, spec.codec, gpu is not None, owners=owners)
        )

    def placed(self, declared: Declared, follows: bool = True) -> Declared:
        """See worker.api.Worker.placed."""
        if not declared.partitions:
            return declared
        now, left = self._moves.settle(declared, follows)
        if left is not None:
            with self._lock:
                self._tensors[now.tensor_id] = self._declare(now)
                self._engine.inherit(self._tensors[now.tensor_id], self._tensors[left.tensor_id])
            self.retire(left)
            self._catalogue.rename(now)
            logger.info("rank %d: %r has moved: %s", self.rank, now.spec.name, _summary(now))
        return now

    def replan(self, why: str, *, partition_bytes: int = 0, weights: Sequence[float] = ()) -> int:
        """Has all tensors placed anew, on all ranks; see control.client.ControlClient.replan. Any one rank may call."""
        self._verdict.check()
        return self._client.replan(why, partition_bytes=partition_bytes, weights=weights)

    def use(self, links: Links) -> None:
        """See worker.api.Tunable."""
        self._engine.credit_bytes = links.credit_bytes or self._settings.credit_bytes
        self._engine.segment_bytes = links.segment_bytes or self._settings.segment_bytes

    def retire(self, declared: Declared) -> None:
        """See worker.api.Tunable. Servers free the sums once all ranks have said so.

        Takes no lock: destructors call this, on any thread and at any time."""
        tensor, cut = self._tensors.pop(declared.tensor_id, None), self._shared.pop(declared.tensor_id, None)
        for known in (tensor, None if cut is None else cut[0]):
            if known is not None:
                self._engine.retire(known)

    def forget(self, declared: Declared) -> None:
        """See worker.api.Forgets."""
        self.retire(self._moves.end(declared))
        self._kept.forget(declared)
        self._started.pop(declared.spec.name, None)
        self._catalogue.forget(declared)
        self._client.retire(declared.tensor_id)

    def meet(self, waiting: Sequence[Meeting], answer: Answer | None = None) -> None:
        """See worker.api.Meets."""
        self._client.meet(waiting, answer)

    def attend(self, who: Attends) -> None:
        """See worker.api.Meets."""
        self._attending.join(who)

    def attend_losses(self, who: MissesRanks) -> None:
        """See worker.api.TellsOfLosses."""
        self._missing.join(who)

    def places(self) -> Places:
        """See worker.api.Placed."""
        return self._places

    def note_route(self, name: str) -> None:
        """See worker.api.Worker.note_route."""
        self._routes[f"route_{name}"] = 1

    def barrier(self, timeout: float | None = None) -> None:
        """Blocks until every rank has come to its barrier."""
        self._verdict.check()
        try:
            self._client.barrier("worker", self._settings.stall_timeout if timeout is None else timeout)
        except DeadlineError:
            raise
        except BytePSLikeError:
            self._verdict.check()
            raise

    def stats(self) -> dict[str, int]:
        """Counters of all links of this worker, to servers and to other workers."""
        among = self._communicator.counters()
        return {name: count + among.get(name, 0) for name, count in self._engine.counters().items()}

    def links(self) -> dict[str, int]:
        """How many links there are now, to servers and to other workers, by transport: {"rdma": 2, "tcp": 1}."""
        return dict(Counter(self._engine.links()) + Counter(self._communicator.links()))

    def _counters(self) -> dict[str, float]:
        """For the scheduler's status. A step is taken when the name that is pushed most often is pushed again."""
        if self._closed:
            return {}
        newest = (number for number, _ in list(self._started.values()))
        card = self._meter.report() if self._meter is not None else {}
        links = {f"links_{transport}": count for transport, count in self.links().items()}
        return {**self.stats(), **self._routes, **links, **card, "steps": max(newest, default=-1) + 1}

    def _names(self) -> dict[str, dict[int, Any]]:
        """For the timeline."""
        return {"partitions": self._catalogue.partitions(), "groups": self._communicator.lanes()}

    def close(self) -> None:
        """Leaves the job in order; operations in flight fail with ShutdownError. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        recorder.remove_member(self.rank)
        self._engine.close()
        if self._meter is not None:
            self._meter.close()
        self._communicator.close()
        self._client.leave()
        # A thread that comes back from the core while the interpreter ends would bring the whole process down.
        if threading.current_thread() is not self._events:
            self._events.join()
        self._attending.leave()

    # --- waiting ---

    def wait_for(self, operation: Any, name: str, timeout: float | None, describe: Describe | None = None) -> None:
        """Waits for an operation of the engine on the tensor `name`, and tells the scheduler when it takes long."""
        try:
            ended = wait_for(
                self._engine, operation, timeout, describe or partial(self._describe, name), self._client.waiting
            )
        except BytePSLikeError as error:
            raise self._explained(error) from None
        if not ended:
            raise DeadlineError(
                f"rank {self.rank}: {name!r} has not ended after {timeout:.1f} s", rank=self.rank, key=name
            )

    def note_absences(self, step: int, declared: Declared, absences: Sequence[Absence]) -> None:
        """What the result of an operation that began in `step` lacks."""
        _, cut = self._shared.get(declared.tensor_id, (0, None))
        self.steps.note(step, declared.spec, [(part_of(declared, cut, one[1]), one) for one in absences])

    def give_up(self, operation: Any, error: BytePSLikeError) -> None:
        """Ends an operation of the engine that other ranks won't complete. Never blocks."""
        self._engine.give_up(operation, int(Code.CLOSED), str(error))

    @property
    def stall_timeout(self) -> float:
        """The job's: seconds of waiting after which it has stalled."""
        return self._settings.stall_timeout

    def wait_on_stream(self, operation: Any, stream: int) -> bool:
        """Has a stream of the GPU wait for an operation of the engine. False if the driver can't."""
        try:
            return bool(self._engine.wait_on_stream(operation, stream))
        except BytePSLikeError as error:
            raise self._explained(error) from None

    def _describe(self, name: str, since: float) -> Waiting:
        """A wait for the newest round of `name`."""
        in_flight = {key: number for key, (number, operation) in list(self._started.items()) if not operation.done()}
        return Waiting(name=name, round=in_flight.get(name, 0), since=since, started=in_flight)

    # --- errors ---

    def _explained(self, error: BytePSLikeError) -> BytePSLikeError:
        """What to raise for an error of the engine: it ends the job, or it is a caller's mistake."""
        if error.code in (Code.INVALID, Code.CLOSED):
            return from_code(error.code, f"rank {self.rank}: {self._catalogue.name_keys(str(error))}", rank=self.rank)
        return self._verdict.explained(error)

    def _pump_events(self) -> None:
        """The core's events, on a thread of their own: the core never waits for Python."""
        while not self._closed:
            event = self._engine.next_event(_POLL)
            if event is not None:
                self._on_core_event(*event)

    def _on_core_event(self, code: int, text: str, fatal: bool) -> None:
        named = self._catalogue.name_keys(text)
        if not fatal:
            logger.warning("rank %d: %s", self.rank, named)
        elif self._verdict.met(error := from_code(code, f"rank {self.rank}: {named}", rank=self.rank)):
            self._client.report(error, self._epoch)

    def changes(self) -> int:
        """See worker.api.HearsOfChanges."""
        return self._client.changes

    def dismissal(self) -> Dismissal | None:
        """See worker.api.HearsOfChanges."""
        return self._client.dismissal

    def newcomers(self) -> Sequence[Newcomer]:
        """See worker.api.MeetsNewcomers."""
        return self._client.newcomers

    def feed(self, number: int, feeders: str) -> None:
        """See worker.api.MeetsNewcomers."""
        self._client.feed(number, feeders)

    def _on_control_event(self, event: WatchEvent) -> None:
        if event.kind is EventKind.LOST:
            self._go_on_without(event)
        elif event.kind is EventKind.WARNING:
            logger.warning("rank %d: %s", self.rank, self._catalogue.name_keys(event.text))
        elif event.disagreement is not None:
            places, text = event.disagreement.places, event.disagreement.text
            self._attending.tell(lambda who: who.disagreed(places, text))
        elif event.question is not None:
            question = event.question
            self._attending.tell(lambda who: who.asked(question))
        elif event.kind is EventKind.MOVES:
            logger.info("rank %d: %d tensors will move: %s", self.rank, len(event.moves), event.text)
            self._moves.hear(event.moves)
        elif event.kind is EventKind.FAILED and not self._closed:
            error = event.error or BytePSLikeError(event.text)
            self._verdict.told(error)
            self._engine.fail(int(error.code), str(error))
            self._communicator.fail(error)
            self._missing.tell(lambda who: who.fail(error))

    def _go_on_without(self, lost: WatchEvent) -> None:
        """These have died. Servers have let go of workers, and what needs those fails; of servers, others take over."""
        logger.warning("rank %d: %s; the others go on", self.rank, lost.text)
        for rank in lost.ranks:
            self._communicator.lose(rank, PeerLostError(lost.text, rank=self.rank, peer=f"worker {rank}"))
            self._missing.tell(partial(_has_died, rank))
        for server in lost.servers:
            self._engine.go_on_without(server, lost.text)

    def _parts(self, partitions: Sequence[Partition], racked: bool) -> list[tuple[int, int, int, int]]:
        """With the channel that each goes by: to its owner, or to an aggregator of this worker's rack."""
        ways = self._ways if racked else None
        by = [(part.server, part.shard) if ways is None else ways.of(part.key) for part in partitions]
        return [
            (part.key, part.offset, part.nbytes, self._channel[shard])
            for part, shard in zip(partitions, by, strict=True)
        ]

    def _owners(self, partitions: Sequence[Partition]) -> list[tuple[int, int]]:
        """To which aggregators pass sums on; none where there is no aggregator."""
        return [(part.server, part.shard) for part in partitions] if self._ways is not None else []


def lasting_of(view: View) -> Lasting | None:
    """Its servers, where they go on into the next world."""
    if not view.finishes_sums:
        return None
    shards = tuple((server.urls, shard) for server in view.servers for shard in range(server.shards))
    return Lasting(view.number, shards)


def cards_of(view: View) -> Cards:
    """Those of `view`, by the rates that its members declared. Ranks of one host share its card evenly, and what its
    servers sum."""
    hosts, share = hosts_of(view), dict.fromkeys((member.host_id for member in view.servers), 0.0)
    for server, weight in zip(view.servers, owner_weights(view), strict=True):
        share[server.host_id] += weight
    known = any(member.gbps > 0 for member in (*view.workers, *view.servers))
    found: list[NicLoad] = []
    for host_id, host in hosts.items():
        rate, cards = host.rate * (1e9 / 8 if known else ASSUMED), host.workers or 1
        found += [NicLoad(host.workers > 0, rate / cards, share.get(host_id, 0.0) / cards)] * cards
    return Cards(tuple(found))


def _placed_on(gpu: OnGpu | None) -> tuple[int, int]:
    return (0, 0) if gpu is None else (gpu.address, gpu.stream)


def _has_died(rank: int, who: MissesRanks) -> None:
    who.hear(rank)


def _peer(member: Member) -> Peer:
    return Peer(member.urls, member.host_id, member.host, member.pid, member.number)


def _summary(declared: Declared) -> str:
    """Bytes by server, for the log."""
    loads: dict[int, int] = {}
    for part in declared.partitions:
        loads[part.server] = loads.get(part.server, 0) + part.nbytes
    return ", ".join(f"{loads[server]} bytes on server {server}" for server in sorted(loads))
