"""From a view to a portable worker in it."""

from __future__ import annotations

from byteps_like.config import Config
from byteps_like.control.calls.client import ControlClient
from byteps_like.control.calls.door_keys import door_keys
from byteps_like.control.calls.secret import seal_key
from byteps_like.control.types import Member, View
from byteps_like.errors import ConfigError
from byteps_like.portable.worker import PortableOptions, PortableWorker

_CREDIT = 8 << 20  # it counts whole partitions, until they are summed


def connect(config: Config, client: ControlClient, view: View) -> PortableWorker:
    """The worker of a member that has joined `view` by `client`; blocks until all servers have let it in.

    `config` holds the job's settings. The worker owns the client from here on. Raises ConfigError for a server
    without a door, RefusedError and PeerLostError for one that doesn't let us in.
    """
    options = PortableOptions(
        job=view.job,
        keys=door_keys(client.secret, view.incarnation),
        incarnation=view.incarnation,
        epoch=view.number,
        standing=view.standing(client.member.number).as_told(config.local_rank, config.local_size),
        doors=tuple(_door(server) for server in sorted(view.servers, key=lambda member: member.rank)),
        seal_key=seal_key(client.secret, view.incarnation, view.number),
        stall_timeout=config.stall_timeout,
        segment=config.segment_bytes,
        credit=max(config.credit_bytes, _CREDIT),
    )
    return PortableWorker(options, client)


def _door(server: Member) -> tuple[str, str, int]:
    name = f"server {server.rank} on {server.host}"
    if not server.door:
        raise ConfigError(f"{name} has no portable door: start it with door=true, or build the native core here")
    return name, server.door, server.number
