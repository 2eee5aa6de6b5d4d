"""This process as a member of its job."""

from __future__ import annotations

import os
import socket
from typing import Any

from byteps_like.config import Config
from byteps_like.control.hosts.address import own_host
from byteps_like.control.hosts.card import link_gbps
from byteps_like.control.hosts.routes import host_id
from byteps_like.control.types import Member, MemberRole


def own_member(config: Config, role: MemberRole, **more: Any) -> Member:
    """What it tells the scheduler of itself. `more`: fields of Member that only the caller knows; they come first.

    Raises ConfigError for an unknown interface, or a scheduler whose name has no address, unless `gbps` is given.
    """
    own: dict[str, Any] = {"role": role, "pid": os.getpid()} | config.told() | more
    own.setdefault("host", config.host or socket.gethostname())
    if "host_id" not in own:
        own["host_id"] = host_id()
    if "gbps" not in own:
        own["gbps"] = link_gbps(config, own_host(config))
    return Member(**own)
