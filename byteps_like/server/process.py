"""One summation server from start to end: native store, portable door, admin service, and its place in the job."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, Protocol

import psutil

from byteps_like import log as logs
from byteps_like.config import Config
from byteps_like.control.calls.client import ControlClient, decline, order_drain
from byteps_like.control.calls.entrance import Entrance
from byteps_like.control.calls.leaving import exit_code
from byteps_like.control.hosts.address import own_host
from byteps_like.control.hosts.card import CardMeter, link_gbps, open_meter
from byteps_like.control.hosts.member import own_member
from byteps_like.control.hosts.rdma import rdma_listen_url, server_urls
from byteps_like.control.hosts.routes import default_shards, host_id, listen_urls
from byteps_like.control.members.drains import DrainOrder, DrainState
from byteps_like.control.types import EventKind, MemberRole, View, WatchEvent
from byteps_like.errors import BytePSLikeError, ConfigError, ShutdownError
from byteps_like.limits import raise_open_files
from byteps_like.server.admin import AdminServer
from byteps_like.server.figures import KeptFigures
from byteps_like.server.imports import import_modules
from byteps_like.server.ports import OnePort, Ports
from byteps_like.timeline.orders import RecordingOrder
from byteps_like.timeline.recorder import recorder
from byteps_like.timeline.records import SERVERS

log = logging.getLogger(__name__)

_HAND_OVER_LOOK = 0.02  # seconds between two looks at whether others have all; only while that is awaited
_ASK_SECONDS = 1.0  # for the scheduler to answer, which may be about to end as well
_LOOK_AGAIN = 0.1  # until it is asked again
_PATIENCE = 60.0  # seconds for which a world may form, or other servers hand over

Notify = Callable[[int, BytePSLikeError, bool], None]
"""Called with the epoch, what a store has noticed in it, and whether that ends it."""


class ServerStore(Protocol):
    """What sums: `server.native.NativeServer`, or a stand-in in tests."""

    @property
    def urls(self) -> tuple[str, ...]:
        """Addresses as bound."""

    @property
    def entrance(self) -> Entrance:
        """The port of its links over TCP."""

    def set_view(self, view: View, rank: int, stall_warning: float, stall_timeout: float) -> None:
        """Forgets everything and serves this view as server `rank`."""

    def fail(self, error: BytePSLikeError) -> None:
        """Tells the workers of this epoch that it has failed."""

    def leave_out(self, ranks: Sequence[int]) -> None:
        """These workers of the view have died, and the others go on without them."""

    def go_on_without(self, servers: Sequence[int]) -> None:
        """The same of other servers."""

    def hand_over(self, *, sealed: bool) -> None:
        """Gives other servers of the view all that it keeps, and whatever changes of that. `sealed`: nothing may."""

    @property
    def to_hand_over(self) -> int | None:
        """What they don't have, as of the last `hand_over`; None: that isn't known yet."""

    def stats(self) -> dict[str, int]:
        """Counters."""

    def kept(self) -> Mapping[int, KeptFigures]:
        """What it has counted of the tensors that it keeps, by tensor id."""

    def stop(self) -> None:
        """Ends all threads."""


class PortableDoor(Protocol):
    """The portable door as the server process sees it."""

    @property
    def url(self) -> str:
        """Address as bound."""

    def set_view(self, view: View, rank: int) -> None:
        """Serves this view as server `rank`."""

    def stop(self) -> None:
        """Ends it."""


MakeStore = Callable[[Config, bytes, list[str], int, Notify], ServerStore]
MakeDoor = Callable[[str, str, bytes, int, str], PortableDoor]


def native_store(config: Config, secret: bytes, urls: list[str], shards: int, notify: Notify) -> ServerStore:
    """The C++ store. Raises SystemCallError if an address can't be bound."""
    from byteps_like.server.native import NativeServer

    limit = config.server_memory_limit or psutil.virtual_memory().total // 2
    return NativeServer(
        config.job,
        secret,
        urls,
        shards=shards,
        memory_limit=limit,
        segment_bytes=config.segment_bytes,
        kernel_queue_bytes=config.kernel_queue_bytes,
        credit_bytes=config.credit_bytes,
        reach=lambda server: server_urls(config, server, host_id()),
        on_event=notify,
    )


def zmq_door(place: str, job: str, secret: bytes, shards: int, inproc_url: str) -> PortableDoor:
    """The door for portable workers."""
    from byteps_like.server.door import open_door

    return open_door(place, job, secret, shards, inproc_url)


class ServerProcess:
    """A server of the job in this process: `start`, then `serve` to the end; `stop` from any thread ends it sooner."""

    def __init__(self, config: Config, make_store: MakeStore = native_store, make_door: MakeDoor = zmq_door) -> None:
        self._config = config
        self._make_store, self._make_door = make_store, make_door
        self._client = ControlClient(config)
        self._parts = ExitStack()
        self._door: PortableDoor | None = None
        self._traced: int | None = None
        self._meter: CardMeter | None = None
        self._epoch = 0  # that the store serves
        self._handing_over = 0  # the epoch in which it does so
        self._ended = threading.Event()
        self.on_rank: Callable[[int], None] | None = None
        """Called with this server's rank when an epoch begins."""

    def start(self) -> None:
        """Listens. Raises SystemCallError if an address is taken, ConfigError for settings that can't be."""
        raise_open_files()
        import_modules(self._config.server_imports)
        config, host = self._config, own_host(self._config)
        shards = config.shards or default_shards()
        unique = f"{config.job}-{os.getpid()}-{secrets.token_hex(4)}"
        urls = listen_urls(
            config.transport, host, config.port, unique, rdma_listen_url(config, host), encrypts=config.tls == "on"
        )
        with ExitStack() as parts:
            self._store = self._make_store(config, self._client.secret, urls, shards, self._on_store_event)
            parts.callback(self._store.stop)
            self._ports = self._plan_ports(host)
            parts.callback(self._ports.close)
            door = ""
            if config.door:
                inproc = next(url for url in self._store.urls if url.startswith("inproc://"))
                place = self._ports.for_door()
                self._door = self._make_door(place, config.job, self._client.secret, shards, inproc)
                parts.callback(self._door.stop)
                self._ports.share("door")
                door = self._ports.door_url(self._door.url)
            self._admin = AdminServer(config, self._counters, self._store.kept)
            admin = self._admin.start(*self._ports.for_calls())
            parts.callback(self._admin.stop)
            self._meter = open_meter(config, host)
            if self._meter is not None:
                parts.callback(self._meter.close)
            self._parts = parts.pop_all()
        self._member = own_member(
            config,
            MemberRole.SERVER,
            urls=tuple(url for url in self._store.urls if not url.startswith("inproc://")),
            shards=shards,
            door=door,
            admin=admin,
            gbps=link_gbps(config, host),
        )

    def _plan_ports(self, host: str) -> Ports:
        if self._config.one_port:
            return OnePort(self._config, host, self._store.entrance, self._store.urls)
        return Ports(self._config, host)

    def serve(self) -> BytePSLikeError | None:
        """Joins and serves epoch after epoch; None when the job has ended, else why this server could not go on."""
        self._client.publish(self._counters)
        try:
            view = self._client.join(self._member)
            self._client.on_event(self._on_event)
            self._serve_metrics()
            while True:
                self._take_up(view)
                view = self._client.next_view()
        except ShutdownError as ended:
            log.info("%s", ended)
            return None
        except BytePSLikeError as error:
            log.error("%s", error)
            return error
        finally:
            self._ended.set()
            self._client.leave()
            if self._traced is not None:
                recorder.remove_member(self._traced)
            self._parts.close()

    def stop(self) -> None:
        """Leaves the job; `serve` returns soon after. Idempotent."""
        self._client.leave()

    def leave_in_order(self) -> None:
        """Leaves once others have what this server keeps, as `byteps-like server drain --replace` has it do; at once
        where they can't have it. Blocks until that is begun."""
        try:
            if self._client.view.finishes_sums and self._is_asked():
                return
            why = "nobody can take over"
        except BytePSLikeError as error:
            why = str(error)
        log.info("leaves at once: %s", why)
        self.stop()

    def _is_asked(self) -> bool:
        """Asks the scheduler for what `byteps-like server drain` asks for, as long as a world forms or another server
        hands over. False: for too long. Raises its error."""
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end:
            own = self._client.member  # the next world may give it another rank
            order = DrainOrder(MemberRole.SERVER, own.rank, replace=True, member=own.number)
            if order_drain(self._config, order, _ASK_SECONDS).state not in (DrainState.FORMING, DrainState.BUSY):
                return True
            if self._ended.wait(_LOOK_AGAIN):
                return True
        return False

    @property
    def exit_code(self) -> int:
        """Of a process that was nothing but this server, once it has left in order."""
        return exit_code(self._client.dismissal)

    def _take_up(self, view: View) -> None:
        rank, settings = self._client.rank, view.settings
        self._admin.rank, self._admin.epoch = rank, view.number
        if self.on_rank is not None:
            self.on_rank(rank)
        warning = float(settings.get("stall_warning", self._config.stall_warning))
        timeout = float(settings.get("stall_timeout", self._config.stall_timeout))
        self._traced = SERVERS + rank
        recorder.add_member(self._traced)
        if self._config.trace and not self._config.trace_steps:  # else rank 0 says when
            recorder.take(RecordingOrder(self._config.trace))
        self._store.set_view(view, rank, warning, timeout)
        self._epoch = view.number
        if self._door is not None:
            self._door.set_view(view, rank)
        self._client.ready(view)

    def _counters(self) -> Mapping[str, float]:
        meter = self._meter.report() if self._meter is not None else {}
        counters = Counter(self._store.stats())
        counters.update(self._admin.strangers())
        return {**counters, **meter}

    def _serve_metrics(self) -> None:
        if self._config.metrics_port:
            from byteps_like.server.metrics import serve_metrics

            labels = {"job": self._config.job, "rank": str(self._client.rank)}
            place = self._ports.for_metrics()
            self._parts.callback(serve_metrics(place, self._counters, labels, self._store.kept))
            self._ports.share("metrics")

    def _on_store_event(self, epoch: int, error: BytePSLikeError, fatal: bool) -> None:
        tell = self._client.report if fatal else self._client.warn
        tell(error, epoch)

    def _on_event(self, event: WatchEvent) -> None:
        if event.kind is EventKind.FAILED and event.error is not None:
            self._store.fail(event.error)
        elif event.kind is EventKind.LOST:
            self._store.leave_out(event.ranks)
            self._store.go_on_without(event.servers)
        elif event.kind is EventKind.DRAIN and event.hand_over and self._handing_over != self._epoch:
            self._handing_over = self._epoch
            threading.Thread(target=self._hand_over, name="byteps_like-hand-over", daemon=True).start()

    def _hand_over(self) -> None:
        """Leaves once others have all that this server keeps, unless its epoch ends before. What comes while the last
        of it is on its way must go along, so it looks once more when nothing can come any more."""
        epoch, sealed = self._epoch, False
        self._store.hand_over(sealed=False)
        while not self._ended.wait(_HAND_OVER_LOOK) and self._epoch == epoch:
            left = self._store.to_hand_over
            if left == 0 and sealed:
                self._client.leave(handed_over=True)
                return
            if left is not None:
                sealed = left == 0
                self._store.hand_over(sealed=sealed)


class EmbeddedServer:
    """A server on a thread of a process that does something else, such as rank 0 under torchrun."""

    def __init__(self, config: Config, make_store: MakeStore = native_store, make_door: MakeDoor = zmq_door) -> None:
        self._server = ServerProcess(config, make_store, make_door)
        self._thread = threading.Thread(target=self._server.serve, name="byteps_like-server", daemon=True)

    def start(self) -> None:
        """Listens, then joins in the background. Raises as ServerProcess.start does."""
        self._server.start()
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Leaves the job and waits for the end. Idempotent."""
        self._server.stop()
        if self._thread.ident is not None:
            self._thread.join(timeout)


def server_config(**given: Any) -> Config:
    """`Config.from_env` for a server. Raises ConfigError, which the workers that would wait for it hear, too."""
    try:
        return Config.from_env(role="server", **given)
    except ConfigError as error:
        with suppress(ConfigError):  # where the scheduler is isn't known
            decline(replace(Config.of_meeting(**given), role="server"), error)
        raise


def run_server(config: Config) -> int:
    """Runs one server until its job has ended, it is asked to leave, or SIGTERM or SIGINT comes; main thread only. The
    process's exit code. At the first SIGTERM it leaves in order, as platforms send it before they take a machine away;
    at a second one, and at SIGINT, at once.

    Raises as ServerProcess.start does; the workers, who would wait for it, hear of that, too.
    """
    logs.set_up("server", config.log_level)
    server = ServerProcess(config)
    server.on_rank = lambda rank: logs.set_up(f"server {rank}", config.log_level)
    try:
        server.start()
    except BytePSLikeError as error:
        decline(config, error)
        raise
    done, failures = threading.Event(), []

    def serve() -> None:
        try:
            failures.append(server.serve())
        finally:
            done.set()

    def leave(*_: object) -> None:
        signal.signal(signal.SIGTERM, lambda *_: done.set())
        threading.Thread(target=server.leave_in_order, name="byteps_like-leave", daemon=True).start()

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, lambda *_: done.set())
    thread = threading.Thread(target=serve, name="byteps_like-serve")
    thread.start()
    done.wait()
    server.stop()
    thread.join()
    return 1 if any(failures) else server.exit_code
