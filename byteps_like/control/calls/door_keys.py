"""The CURVE keys of the portable door: both pairs follow from the job's secret, so only its holders get through.

The clients' pair is one incarnation's: a door admits no worker that was left over from another start of the job.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import zmq
from zmq.utils import z85

from byteps_like.control.calls.secret import derive

_SERVER_PURPOSE = "door server"
_CLIENT_PURPOSE = "door client"


@dataclass(frozen=True)
class DoorKeys:
    """Z85 keys, 40 bytes each, of the door and of its clients."""

    server_public: bytes
    server_secret: bytes = field(repr=False)
    client_public: bytes
    client_secret: bytes = field(repr=False)


def door_keys(secret: bytes, incarnation: bytes) -> DoorKeys:
    """The keys of this incarnation of the job with `secret`; the door's own are those of all.

    Needs a libzmq with CURVE (zmq.has("curve")); pyzmq's wheels have it.
    """
    server = z85.encode(derive(secret, _SERVER_PURPOSE))
    client = z85.encode(derive(secret, f"{_CLIENT_PURPOSE} {incarnation.hex()}"))
    return DoorKeys(zmq.curve_public(server), server, zmq.curve_public(client), client)
