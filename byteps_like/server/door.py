"""The portable door: lets workers in pure Python reach this server's native store over ZeroMQ.

A bridge, not a second store: for each portable rank and shard it opens a native link within the process and passes
frames both ways (docs/reference/protocol.md, "The portable door"). One thread, asleep in a poller when idle.
"""

from __future__ import annotations

import heapq
import importlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import zmq

from byteps_like.control.calls.door_keys import door_keys
from byteps_like.control.types import View
from byteps_like.errors import BytePSLikeError, CorruptError, RefusedError, ShutdownError
from byteps_like.server.door_session import SEGMENT, WINDOW, DoorSession, FrameLink, LinkOpener
from byteps_like.server.door_socket import DoorSocket, PeerGoneError
from byteps_like.wire.crc32c import Buffer
from byteps_like.wire.door import (
    DOOR_VERSION,
    PROTOCOL_VERSION,
    DoorKind,
    Envelope,
    Hello,
    Welcome,
    decode_envelope,
    decode_hello,
    encode_refusal,
)
from byteps_like.wire.wakeup import Wakeup

_log = logging.getLogger(__name__)

EARLY_SECONDS = 5.0  # how long a HELLO of an epoch that this server hasn't heard of yet may wait
_EARLY_LIMIT = 4096
_ROOM_SECONDS = 0.005
"""After which a full queue is looked at again."""
PATIENCE_SECONDS = 30.0
"""How long a worker may take nothing at all: as long as one whose heartbeats fail."""
_PROBE_AGAIN_SECONDS = 0.2  # ZeroMQ reports a disconnect a little before it forgets the peer


@dataclass(frozen=True)
class DoorConfig:
    """What a door needs: where to bind ("tcp://10.0.0.2:*"), whose it is, and how to reach the store behind it."""

    url: str
    job: str
    secret: bytes
    shards: int
    open_link: LinkOpener


def open_door(place: str, job: str, secret: bytes, shards: int, inproc_url: str) -> Door:
    """A door before the native server of this process that listens at `inproc_url`: at a free port of the host `place`,
    or on the Unix socket of this path.

    Give it each view by `set_view`, after the server. Raises SystemCallError if the address can't be bound.
    """
    host = f"[{place}]" if ":" in place else place
    url = f"ipc://{place}" if place.startswith("/") else f"tcp://{host}:*"
    return Door(DoorConfig(url, job, secret, shards, native_links(inproc_url, job, secret)))


def native_links(url: str, job: str, secret: bytes) -> LinkOpener:
    """Opens links to the native server that listens at `url` ("inproc://…") in this process."""
    core = importlib.import_module("byteps_like._core")

    def open_link(hello: Hello, shard: int) -> FrameLink:
        whom = (hello.incarnation, hello.view, hello.member, hello.server, shard)
        return cast(FrameLink, core.InprocLink(url, job, secret, *whom))

    return open_link


class Door:
    """Runs from construction to `stop`. Thread-safe. Raises SystemCallError if the address can't be bound."""

    def __init__(self, config: DoorConfig) -> None:
        self._config = config
        self._socket = DoorSocket(config.url, door_keys(config.secret, b"").server_secret)
        self._sessions: dict[bytes, DoorSession] = {}
        self._link_of: dict[int, tuple[DoorSession, int]] = {}
        self._early: dict[bytes, tuple[Hello, float]] = {}
        """HELLOs of an epoch to come, the oldest first, and until when each may wait."""
        self._refuses_early = self._probes_again = False
        """Whether a timer for it runs."""
        self._view: View | None = None
        self._rank = 0
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._timer_count = 0
        self._lock = threading.Lock()
        self._posted: list[Callable[[], None]] = []
        self._running = True
        self._wakeup = Wakeup()
        self._poller = zmq.Poller()
        self._thread = threading.Thread(target=self._run, name="byteps_like door", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it is bound, with the real port."""
        return self._socket.url

    def set_view(self, view: View, rank: int) -> None:
        """From now on only workers of this view are let in; sessions of another one end. Returns at once.

        `rank` is this server's.
        """
        self._post(lambda: self._enter(view, rank))

    def stop(self) -> None:
        """Ends all sessions and the thread. Idempotent; blocks until done."""
        self._post(self._halt)
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _post(self, task: Callable[[], None]) -> None:
        with self._lock:
            self._posted.append(task)
        self._wakeup.set()

    def _halt(self) -> None:
        self._running = False

    # Everything below runs on the door's thread.

    def _run(self) -> None:
        sources = (self._socket.router, self._socket.admission, self._socket.monitor, self._wakeup.fileno())
        for source in sources:
            self._poller.register(source, zmq.POLLIN)
        try:
            while self._running:
                self._turn(dict(self._poller.poll(self._sleep_ms())))
        finally:
            for session in list(self._sessions.values()):
                self._drop(session)
            self._socket.close()
            self._wakeup.close()

    def _sleep_ms(self) -> int | None:
        if not self._timers:
            return None
        return max(0, int((self._timers[0][0] - time.monotonic()) * 1000) + 1)

    def _turn(self, ready: dict[object, int]) -> None:
        if self._wakeup.fileno() in ready:
            self._wakeup.clear()
            self._run_posted()
        if self._socket.admission in ready:
            self._socket.admit()
        for source in ready:
            if isinstance(source, int) and source in self._link_of:
                self._from_link(*self._link_of[source])
        if self._socket.router in ready:
            for peer, parts in self._socket.receive():
                self._from_peer(peer, parts)
        if self._socket.monitor in ready and self._socket.somebody_left():
            self._probe()
            if not self._probes_again:
                self._probes_again = True
                self._call_in(_PROBE_AGAIN_SECONDS, self._probe_again)
        while self._timers and self._timers[0][0] <= time.monotonic():
            heapq.heappop(self._timers)[2]()

    def _run_posted(self) -> None:
        with self._lock:
            posted, self._posted = self._posted, []
        for task in posted:
            task()

    def _call_in(self, seconds: float, task: Callable[[], None]) -> None:
        self._timer_count += 1
        heapq.heappush(self._timers, (time.monotonic() + seconds, self._timer_count, task))

    @property
    def _epoch(self) -> int:
        return self._view.number if self._view is not None else 0

    def _enter(self, view: View, rank: int) -> None:
        self._view, self._rank = view, rank
        self._socket.admitted = door_keys(self._config.secret, view.incarnation).client_public
        for session in list(self._sessions.values()):
            if session.view != view.number:
                self._end(session, ShutdownError(f"epoch {session.view} is over; the job is at {view.number}"))
        early, self._early = self._early, {}
        for peer, (hello, _) in early.items():
            self._welcome(peer, hello)

    def _from_peer(self, peer: bytes, parts: list[Buffer]) -> None:
        session = self._sessions.get(peer)
        try:
            envelope = decode_envelope(parts)
            if envelope.version != DOOR_VERSION:
                raise RefusedError(f"door version {envelope.version} is not this server's {DOOR_VERSION}")
            if envelope.kind == DoorKind.HELLO and (session is not None or peer in self._early):
                raise CorruptError("a second HELLO on one connection")
            if envelope.kind == DoorKind.HELLO:
                self._welcome(peer, decode_hello(parts[1]))
            elif envelope.kind == DoorKind.BYE:
                self._leave(peer)
            elif session is None and peer not in self._early:
                raise ShutdownError("no session on this connection: HELLO comes first")
            elif envelope.kind == DoorKind.FRAME and session is not None:
                session.forward(envelope.shard, parts[1], parts[2])
            else:
                raise CorruptError(f"{envelope.kind.name} message where none may come")
        except BytePSLikeError as error:
            self._refuse(peer, error)

    def _welcome(self, peer: bytes, hello: Hello) -> None:
        if hello.view > self._epoch and len(self._early) < _EARLY_LIMIT:
            if not self._refuses_early:
                self._refuses_early = True
                self._call_in(EARLY_SECONDS, self._refuse_early)
            self._early[peer] = hello, time.monotonic() + EARLY_SECONDS
            return
        try:
            rank = self._check(hello)
            self._replace(rank)
            session = DoorSession(peer, hello, rank, self._config.shards, self._config.open_link)
        except BytePSLikeError as error:
            self._refuse(peer, error)
            return
        self._admit(session)

    def _refuse_early(self) -> None:
        """Whose epoch hasn't come in time; called when the oldest one's time is over."""
        now = time.monotonic()
        while self._early:
            peer, (hello, until) = next(iter(self._early.items()))
            if until > now:
                self._call_in(until - now, self._refuse_early)
                return
            del self._early[peer]
            self._refuse(peer, RefusedError(f"epoch {hello.view} did not begin here; this server is at {self._epoch}"))
        self._refuses_early = False

    def _check(self, hello: Hello) -> int:
        """The worker's rank. Raises RefusedError, naming all that differs."""
        view = self._view
        assert view is not None
        own = view.servers[self._rank].number
        differs = [
            f"{name} {theirs} is not this server's {ours}"
            for name, theirs, ours in (
                ("protocol version", hello.protocol, PROTOCOL_VERSION),
                ("job", repr(hello.job), repr(self._config.job)),
                ("incarnation", hello.incarnation.hex(), view.incarnation.hex()),
                ("epoch", hello.view, view.number),
                ("world size", hello.world_size, len(view.workers)),
            )
            if theirs != ours
        ]
        if not differs and hello.server != own:
            differs = [f"you have reached server {self._rank}, not whom you dialled: two servers have the same address"]
        elif not differs and hello.member not in view.ranks:
            differs = [f"there is no member {hello.member} among the workers of epoch {view.number}"]
        if differs:
            raise RefusedError("; ".join(differs), rank=view.ranks.get(hello.member))
        return view.ranks[hello.member]

    def _replace(self, rank: int) -> None:
        for session in list(self._sessions.values()):
            if session.rank == rank:
                self._end(session, ShutdownError(f"rank {rank} said HELLO on another connection"))

    def _admit(self, session: DoorSession) -> None:
        self._sessions[session.peer] = session
        for shard, link in enumerate(session.links):
            self._link_of[link.fileno()] = (session, shard)
            self._poller.register(link.fileno(), zmq.POLLIN)
        _log.info("portable rank %d is in (epoch %d)", session.rank, session.view)
        welcome = Welcome(self._epoch, self._config.shards, SEGMENT, WINDOW)
        self._send(session.peer, [Envelope(DoorKind.WELCOME).encode(), welcome.encode()])

    def _from_link(self, session: DoorSession, shard: int) -> None:
        if session.paused:
            return
        envelope = Envelope(DoorKind.FRAME, shard).encode()
        try:
            session.unsent.extend([envelope, header, payload] for header, payload in session.answers(shard))
        except BytePSLikeError as error:
            if session.leaving:
                self._drop(session)
            else:
                self._end(session, error)
            return
        self._deliver(session)

    def _deliver(self, session: DoorSession) -> None:
        """Sends what is unsent; its links are read again once nothing is."""
        try:
            while session.unsent and self._socket.send(session.peer, session.unsent[0]):
                session.unsent.popleft()
                session.last_sent = time.monotonic()
        except PeerGoneError as why:
            self._lose(session, str(why))
            return
        if session.paused != bool(session.unsent):
            self._pause(session, bool(session.unsent))
        if session.paused:
            self._call_in(_ROOM_SECONDS, lambda: self._deliver_again(session))

    def _deliver_again(self, session: DoorSession) -> None:
        if self._sessions.get(session.peer) is not session:
            return
        if time.monotonic() - session.last_sent >= PATIENCE_SECONDS:
            self._end(session, ShutdownError(f"rank {session.rank} has taken nothing for {PATIENCE_SECONDS:g} s"))
        else:
            self._deliver(session)

    def _pause(self, session: DoorSession, paused: bool) -> None:
        session.paused = paused
        for link in session.links:
            if paused:
                self._poller.unregister(link.fileno())
            else:
                self._poller.register(link.fileno(), zmq.POLLIN)

    def _leave(self, peer: bytes) -> None:
        self._early.pop(peer, None)
        if peer in self._sessions:
            self._drop(self._sessions[peer])

    def _probe_again(self) -> None:
        self._probes_again = False
        self._probe()

    def _probe(self) -> None:
        for peer in list(self._sessions):
            self._send(peer, [Envelope(DoorKind.PROBE).encode()])

    def _send(self, peer: bytes, parts: list[Buffer]) -> None:
        """Unless there is no room. The session of a peer that is gone is over."""
        try:
            self._socket.send(peer, parts)
        except PeerGoneError as why:
            if peer in self._sessions:
                self._lose(self._sessions[peer], str(why))

    def _lose(self, session: DoorSession, why: str) -> None:
        _log.info("portable rank %d is gone: %s", session.rank, why)
        self._drop(session)

    def _refuse(self, peer: bytes, error: BytePSLikeError) -> None:
        self._early.pop(peer, None)
        level = logging.INFO if isinstance(error, ShutdownError) else logging.WARNING  # an end, or something wrong
        _log.log(level, "portable door: %s", error)
        session = self._sessions.get(peer)
        if session is not None:
            self._drop(session)
        self._insist(peer, [Envelope(DoorKind.REFUSED).encode(), encode_refusal(error)], PATIENCE_SECONDS)

    def _insist(self, peer: bytes, parts: list[Buffer], patience: float) -> None:
        """Sends a message to a peer without a session as soon as there is room."""
        try:
            if not self._socket.send(peer, parts) and patience > 0:
                self._call_in(_ROOM_SECONDS, lambda: self._insist(peer, parts, patience - _ROOM_SECONDS))
        except PeerGoneError:
            return

    def _end(self, session: DoorSession, error: BytePSLikeError) -> None:
        self._refuse(session.peer, error)

    def _drop(self, session: DoorSession) -> None:
        del self._sessions[session.peer]
        for link in session.links:
            if not session.paused:
                self._poller.unregister(link.fileno())
            del self._link_of[link.fileno()]
        session.close()
