"""The worker's side of the portable door, message by message: what tests say to it, and what they hear."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import zmq
from fake_store import FIRST, INCARNATION, SECRET, SERVER

from byteps_like.control.calls.door_keys import door_keys
from byteps_like.errors import BytePSLikeError
from byteps_like.portable.dealer import Dealer
from byteps_like.wire.door import DoorKind, Envelope, Hello, Welcome, decode_envelope, decode_refusal, decode_welcome
from byteps_like.wire.frame import Header, seal

HELLO = Hello("job", INCARNATION, 1, FIRST, SERVER, 2)


@contextmanager
def client(url: str, secret: bytes = SECRET) -> Iterator[Dealer]:
    """A connection to the door at `url`."""
    context = zmq.Context()
    dealer = Dealer(context, url, door_keys(secret, INCARNATION))
    try:
        yield dealer
    finally:
        dealer.close()
        context.term()


def send(dealer: Dealer, *parts: bytes) -> None:
    """Waits for room in the connection's queue: a dealer drops what finds none."""
    assert dealer.socket.poll(5000, zmq.POLLOUT) and dealer.send(*parts), "no room within 5 s"


def receive(dealer: Dealer, kind: DoorKind) -> list:
    """The parts of the next message of this kind; what comes before it is thrown away."""
    while dealer.socket.poll(5000):
        parts = dealer.receive()
        if parts is not None and decode_envelope(parts).kind == kind:
            return parts
    raise AssertionError(f"no {kind.name} within 5 s")


def say_hello(dealer: Dealer, hello: Hello = HELLO) -> Welcome:
    """What the door answers."""
    send(dealer, Envelope(DoorKind.HELLO).encode(), hello.encode())
    return decode_welcome(receive(dealer, DoorKind.WELCOME)[1])


def refusal(dealer: Dealer) -> BytePSLikeError:
    """Why the door has refused."""
    return decode_refusal(receive(dealer, DoorKind.REFUSED)[1])


def send_frame(dealer: Dealer, header: Header, payload: bytes = b"", shard: int = 0) -> None:
    """A frame with its length and checksums."""
    send(dealer, Envelope(DoorKind.FRAME, shard).encode(), seal(header, payload), payload)
