"""The door's ROUTER: bound, encrypted, open to one client key, bounded; says when somebody disconnected."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from byteps_like.errors import SystemCallError
from byteps_like.wire.crc32c import Buffer
from byteps_like.wire.frame import MAX_PAYLOAD

_log = logging.getLogger(__name__)

ZAP_DOMAIN = b"byteps_like"
_HEARTBEAT_MS = 5_000
_HEARTBEAT_TIMEOUT_MS = 30_000  # a stopped process is slow, not gone: the stall rules are about it
_HANDSHAKE_MS = 10_000
_RECEIVE_QUEUE = 64  # messages per peer, before its TCP window closes
_SEND_QUEUE = 256  # messages per peer: 32 MiB of usual segments
_BURST = 64  # messages per turn, so that links are served in between

_FAILURES = zmq.Event.HANDSHAKE_FAILED_NO_DETAIL | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
_EVENTS = zmq.Event.DISCONNECTED | _FAILURES


class PeerGoneError(Exception):
    """The peer of this routing id isn't connected any more."""


class DoorSocket:
    """Owns the ZeroMQ context and its three sockets. All on one thread. `secret` is the door's CURVE key.

    Raises SystemCallError if `url` can't be bound.
    """

    def __init__(self, url: str, secret: bytes) -> None:
        self._context = zmq.Context(io_threads=1)
        self.admitted = b""
        """The clients' public key: of nobody before the first world."""
        self.admission = self._context.socket(zmq.REP)
        self.admission.linger = 0
        self.admission.bind("inproc://zeromq.zap.01")
        self.router = self._context.socket(zmq.ROUTER)
        try:
            self._bind(url, secret)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise SystemCallError(f"the portable door can't be bound to {url}: {error.strerror}") from None
        self.monitor = self.router.get_monitor_socket(_EVENTS)
        self.url = self.router.getsockopt_string(zmq.LAST_ENDPOINT)

    def _bind(self, url: str, secret: bytes) -> None:
        router = self.router
        options = {
            zmq.LINGER: 0, zmq.ROUTER_MANDATORY: 1, zmq.IPV6: int("[" in url), zmq.HANDSHAKE_IVL: _HANDSHAKE_MS,
            zmq.HEARTBEAT_IVL: _HEARTBEAT_MS, zmq.HEARTBEAT_TIMEOUT: _HEARTBEAT_TIMEOUT_MS, zmq.SNDHWM: _SEND_QUEUE,
            zmq.RCVHWM: _RECEIVE_QUEUE, zmq.MAXMSGSIZE: MAX_PAYLOAD, zmq.CURVE_SERVER: 1,
        }  # fmt: skip
        for option, value in options.items():
            router.setsockopt(option, value)
        router.setsockopt(zmq.CURVE_SECRETKEY, secret)
        router.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
        router.bind(url)

    def admit(self) -> None:
        """Answers one request of the ZeroMQ authentication protocol (RFC 27): yes for the job's client key only."""
        parts = self.admission.recv_multipart()
        request, address, mechanism = parts[1], parts[3].decode(errors="replace"), parts[5]
        known = mechanism == b"CURVE" and z85.encode(parts[6]) == self.admitted
        if not known:
            _log.warning("refused a portable worker at %s: its key is not of this job's secret and start", address)
        status = (b"200", b"") if known else (b"400", b"not the key of this job")
        self.admission.send_multipart([b"1.0", request, *status, b"portable worker" if known else b"", b""])

    def somebody_left(self) -> bool:
        """Reads what the monitor has; True if a connection ended. Logs handshakes that failed."""
        left = False
        while self.monitor.poll(0):
            event = recv_monitor_message(self.monitor)
            if event["event"] & _FAILURES:
                _log.warning("refused a client at the portable door: no CURVE, or not with the key of this job")
            left |= bool(event["event"] & zmq.Event.DISCONNECTED)
        return left

    def receive(self) -> Iterator[tuple[bytes, list[Buffer]]]:
        """Some of the messages that are here: the peer's routing id and the parts."""
        for _ in range(_BURST):
            try:
                parts = self.router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            yield parts[0].bytes, [part.buffer for part in parts[1:]]

    def send(self, peer: bytes, parts: list[Buffer]) -> bool:
        """Queues a message; False if there is no room for it now. Raises PeerGoneError when there is no such peer."""
        try:
            self.router.send_multipart([peer, *parts], zmq.NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                raise PeerGoneError(error.strerror) from None
            raise
        return True

    def close(self) -> None:
        """Closes everything at once."""
        self.router.disable_monitor()
        for each in (self.monitor, self.router, self.admission):
            each.close(linger=0)
        self._context.term()
