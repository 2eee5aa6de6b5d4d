"""A DEALER to one server's door: encrypted, bounded, with a monitor that tells how the connection fares."""

from __future__ import annotations

from enum import Enum, auto

import zmq
from zmq.utils.monitor import recv_monitor_message

from byteps_like.control.calls.door_keys import DoorKeys
from byteps_like.wire.crc32c import Buffer
from byteps_like.wire.frame import MAX_PAYLOAD

_HEARTBEAT_MS = 5_000
_HEARTBEAT_TIMEOUT_MS = 30_000
_SEND_QUEUE = 8  # messages: what a higher priority has to wait for
_RECEIVE_QUEUE = 256
_GOODBYE_MS = 1_000  # how long the last messages may take

_AUTH = zmq.Event.HANDSHAKE_FAILED_AUTH
_HANDSHAKE = zmq.Event.HANDSHAKE_FAILED_PROTOCOL | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL


class Trouble(Enum):
    """What the monitor has seen; the worst of it."""

    NONE = auto()
    DISCONNECTED = auto()
    HANDSHAKE_FAILED = auto()
    KEY_REFUSED = auto()


class Dealer:
    """One connection; never reused after trouble, so that nothing of an old session is sent in a new one."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], url: str, keys: DoorKeys) -> None:
        self.socket = context.socket(zmq.DEALER)
        options = {
            zmq.LINGER: 0, zmq.IPV6: int("[" in url), zmq.SNDHWM: _SEND_QUEUE, zmq.RCVHWM: _RECEIVE_QUEUE,
            zmq.HEARTBEAT_IVL: _HEARTBEAT_MS, zmq.HEARTBEAT_TIMEOUT: _HEARTBEAT_TIMEOUT_MS,
            zmq.MAXMSGSIZE: MAX_PAYLOAD, zmq.RECONNECT_IVL: 50,
        }  # fmt: skip
        for option, value in options.items():
            self.socket.setsockopt(option, value)
        self.socket.setsockopt(zmq.CURVE_SERVERKEY, keys.server_public)
        self.socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.client_public)
        self.socket.setsockopt(zmq.CURVE_SECRETKEY, keys.client_secret)
        self.monitor = self.socket.get_monitor_socket(zmq.Event.DISCONNECTED | _HANDSHAKE | _AUTH)
        self.socket.connect(url)

    def trouble(self) -> Trouble:
        """Reads what the monitor has."""
        worst = Trouble.NONE
        while self.monitor.poll(0):
            event = recv_monitor_message(self.monitor)["event"]
            seen = Trouble.DISCONNECTED
            if event & _AUTH:
                seen = Trouble.KEY_REFUSED
            elif event & _HANDSHAKE:
                seen = Trouble.HANDSHAKE_FAILED
            worst = max(worst, seen, key=lambda each: each.value)
        return worst

    def has_room(self) -> bool:
        """Whether `send` would take a message now. Only this thread sends, so it stays so until it does."""
        return bool(int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLOUT)

    def send(self, *parts: Buffer) -> bool:
        """Queues a message; False if there is no room now."""
        try:
            self.socket.send_multipart(parts, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def receive(self) -> list[Buffer] | None:
        """The parts of the next message; None if there is none now."""
        try:
            return [frame.buffer for frame in self.socket.recv_multipart(zmq.NOBLOCK, copy=False)]
        except zmq.Again:
            return None

    def close(self, *, orderly: bool = False) -> None:
        """Closes at once, or after what is queued has had a second to leave. Never blocks."""
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close(linger=_GOODBYE_MS if orderly else 0)
