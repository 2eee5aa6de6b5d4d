"""One server as a portable worker reaches it: connects, says who it is, goes on after a broken connection."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, auto

import zmq

from byteps_like.control.calls.door_keys import DoorKeys
from byteps_like.errors import BytePSLikeError, Code, CorruptError, PeerLostError, RefusedError, from_code
from byteps_like.portable.dealer import Dealer, Trouble
from byteps_like.portable.flow import Flow
from byteps_like.portable.store_flow import StoreFlow
from byteps_like.portable.transfer import Transfer
from byteps_like.wire.crc32c import Buffer
from byteps_like.wire.door import (
    DoorKind,
    Envelope,
    Hello,
    decode_envelope,
    decode_refusal,
    decode_welcome,
)
from byteps_like.wire.frame import FrameType, Header, check_payload, decode_header, seal

_log = logging.getLogger(__name__)

_BURST = 32  # messages taken per step, so that pushes go on in between
_REOPEN_SECONDS = 0.05
_HANDSHAKES = 3  # failed ones in a row that mean a wrong secret rather than a server that just died
_CORRUPTIONS = 10  # in a row without any progress: the fault is not on the way
_HEADER_AND_ENVELOPE = 72
_OF_KEYS = frozenset(
    {
        FrameType.RESULT,
        FrameType.RESUMED,
        FrameType.OPENED,
        FrameType.APPLIED,
        FrameType.VALUE,
        FrameType.CUTOFF,
        FrameType.NACK,
        FrameType.CALL,
        FrameType.CUT,
        FrameType.STATE,
    }
)
_PASSING = frozenset({Code.CLOSED, Code.PEER_LOST, Code.TIMEOUT, Code.SYSTEM})
"""Refusals after which it is worth to connect again."""


@dataclass(frozen=True)
class ChannelOptions:
    """Where the door is, who we are, and the limits: bytes per segment, bytes in flight, seconds to be without it."""

    server: str
    url: str
    keys: DoorKeys
    hello: Hello
    segment: int
    credit: int
    patience: float


@dataclass(frozen=True)
class ChannelEvents:
    """Whom a channel tells: the server has welcomed us; it warns; a partition is complete; the job is lost."""

    opened: Callable[[], None]
    warned: Callable[[str], None]
    finished: Callable[[Transfer], None]
    failed: Callable[[BytePSLikeError], None]


class _State(Enum):
    BROKEN = auto()
    GREETING = auto()
    OPEN = auto()
    CLOSED = auto()


class Channel:
    """All on the worker's thread; no call blocks. `step` does whatever can be done now."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], poller: zmq.Poller, options: ChannelOptions, to: ChannelEvents
    ) -> None:
        self._context, self._poller, self._options, self._to = context, poller, options, to
        self._state = _State.BROKEN
        self._dealer: Dealer | None = None
        self._reopen_at = self._broken_since = time.monotonic()
        self._problem = "no answer"
        self._failed_handshakes = self._corruptions = 0
        self._shards = 0
        self._flow = Flow(options.segment, options.credit, to.finished)
        self.submit = self._flow.submit
        self.stores = StoreFlow(options.segment, options.credit)
        self.counters: Counter[str] = Counter()
        self.last_progress = time.monotonic()

    def step(self) -> None:
        """Opens, receives, sends, gives up: what is due or possible now."""
        if self._state is _State.BROKEN and time.monotonic() >= self._reopen_at:
            self._open()
        if self._dealer is not None:
            self._look_after(self._dealer)
        if self._dealer is not None:
            self._receive(self._dealer)
        if self._state is _State.OPEN and self._dealer is not None:
            self._send(self._dealer)
        self._give_up_when_late()

    def deadline(self) -> float | None:
        """When `step` has something to do though nothing came; None: never."""
        if self._state is _State.BROKEN:
            return self._reopen_at
        return self._broken_since + self._options.patience if self._state is _State.GREETING else None

    def close(self, *, orderly: bool = False) -> None:
        """Says goodbye if `orderly`, closes the connection, forgets all transfers. Idempotent."""
        if orderly and self._dealer is not None and self._state is _State.OPEN:
            for shard in range(self._shards):
                self._send_frame(self._dealer, shard, Header(FrameType.GOODBYE), b"")
            self._dealer.send(Envelope(DoorKind.BYE).encode())
        self._disconnect(orderly=orderly)
        self._state = _State.CLOSED
        self._flow.clear()
        self.stores.clear()

    # Connecting

    def _open(self) -> None:
        self._dealer = Dealer(self._context, self._options.url, self._options.keys)
        self._state = _State.GREETING
        self._poller.register(self._dealer.monitor, zmq.POLLIN)
        self._poller.register(self._dealer.socket, zmq.POLLIN)
        self._dealer.send(Envelope(DoorKind.HELLO).encode(), self._options.hello.encode())

    def _disconnect(self, *, orderly: bool = False) -> None:
        if self._dealer is not None:
            self._poller.unregister(self._dealer.monitor)
            self._poller.unregister(self._dealer.socket)
            self._dealer.close(orderly=orderly)
            self._dealer = None

    def _break(self, problem: str) -> None:
        _log.info("connection to %s broke: %s", self._options.server, problem)
        if self._state is _State.OPEN:
            self._broken_since = time.monotonic()
        self._problem = problem
        self._state = _State.BROKEN
        self._reopen_at = time.monotonic() + _REOPEN_SECONDS
        self._disconnect()

    def _look_after(self, dealer: Dealer) -> None:
        trouble = dealer.trouble()
        if trouble is Trouble.NONE:
            return
        if trouble is not Trouble.DISCONNECTED:
            self._failed_handshakes += 1
            if trouble is Trouble.KEY_REFUSED or self._failed_handshakes >= _HANDSHAKES:
                self._fail(
                    RefusedError(
                        self._text(
                            "refused the key of this worker: it has another secret, or is of another start of the job"
                        )
                    )
                )
                return
        self._break("disconnected" if trouble is Trouble.DISCONNECTED else "the handshake failed")

    def _give_up_when_late(self) -> None:
        if self._state not in (_State.BROKEN, _State.GREETING):
            return
        elapsed = time.monotonic() - self._broken_since
        if elapsed >= self._options.patience:
            text = self._text(f"can't be reached for {elapsed:.1f} s: {self._problem}")
            self._fail(PeerLostError(text, peer=self._options.server, elapsed=elapsed))

    def _text(self, what: str) -> str:
        return f"{self._options.server} (portable door {self._options.url}) {what}"

    def _fail(self, error: BytePSLikeError) -> None:
        self.close()
        self._to.failed(error)

    # Receiving

    def _receive(self, dealer: Dealer) -> None:
        for _ in range(_BURST):
            parts = dealer.receive()
            if parts is None:
                return
            try:
                self._take(parts)
            except CorruptError as error:
                _log.warning("%s", self._text(f"sent an invalid message: {error}; reconnecting"))
                self._break_corrupt(error)
            if self._dealer is not dealer:
                return

    def _take(self, parts: list[Buffer]) -> None:
        envelope = decode_envelope(parts)
        if envelope.kind == DoorKind.REFUSED:
            self._refused(decode_refusal(parts[1]))
        elif envelope.kind == DoorKind.WELCOME:
            self._welcomed(parts[1])
        elif envelope.kind == DoorKind.FRAME:
            header = decode_header(parts[1])
            check_payload(header, parts[2])
            self._count("received", header.length)
            if header.view == self._options.hello.view:
                self._take_frame(header, parts[2])

    def _refused(self, error: BytePSLikeError) -> None:
        if error.code == Code.CORRUPT:
            self._break_corrupt(error)
        elif error.code in _PASSING:
            self._break(str(error))
        else:
            self._fail(from_code(error.code, self._text(f"refused us: {error}")))

    def _welcomed(self, body: Buffer) -> None:
        welcome = decode_welcome(body)
        self._state = _State.OPEN
        self._failed_handshakes = 0
        self._shards = welcome.shards
        for flow in (self._flow, self.stores):
            flow.set_segment(min(self._options.segment, welcome.segment))
            flow.credit = min(self._options.credit, welcome.window)
            flow.new_link()
        self._to.opened()

    def _take_frame(self, header: Header, payload: Buffer) -> None:
        text = bytes(payload).decode(errors="replace") if header.type in (FrameType.ERROR, FrameType.WARNING) else ""
        if header.type in _OF_KEYS:
            if self.stores.take(header, payload) or self._flow.take(header, payload):
                self.last_progress = time.monotonic()
                self._corruptions = 0
        elif header.type == FrameType.ERROR:
            self._fail(from_code(header.aux, text))
        elif header.type == FrameType.WARNING:
            self._to.warned(text)
        elif header.type == FrameType.GOODBYE:
            self._break("the server said goodbye")

    def _break_corrupt(self, error: BytePSLikeError) -> None:
        self._corruptions += 1
        if self._corruptions >= _CORRUPTIONS:
            self._fail(from_code(error.code, self._text(f"and sent invalid messages repeatedly: {error}")))
        else:
            self._break(str(error))

    # Sending

    def _send(self, dealer: Dealer) -> None:
        while (flow := self._most_urgent()) is not None and dealer.has_room():
            self._send_frame(dealer, *flow.next_frame())
            self.last_progress = time.monotonic()
        self._poller.register(dealer.socket, zmq.POLLIN | (zmq.POLLOUT if flow is not None else 0))

    def _most_urgent(self) -> Flow | StoreFlow | None:
        """Rounds go first among equals: all ranks wait for them."""
        rounds, stores = self._flow.urgency(), self.stores.urgency()
        if rounds is None and stores is None:
            return None
        return self.stores if rounds is None or (stores is not None and stores > rounds) else self._flow

    def _send_frame(self, dealer: Dealer, shard: int, header: Header, payload: Buffer) -> None:
        header = replace(header, view=self._options.hello.view, member=self._options.hello.member)
        if dealer.send(Envelope(DoorKind.FRAME, shard).encode(), seal(header, payload), payload):
            self._count("sent", len(payload))

    def _count(self, direction: str, payload: int) -> None:
        self.counters[f"frames_{direction}"] += 1
        self.counters[f"payload_{direction}"] += payload
        self.counters[f"bytes_{direction}"] += payload + _HEADER_AND_ENVELOPE
