"""How a process becomes a portable worker, native core or not."""

from __future__ import annotations

from byteps_like.config import Config
from byteps_like.control.calls.client import ControlClient
from byteps_like.control.hosts.member import own_member
from byteps_like.control.types import MemberRole
from byteps_like.portable.connect import connect
from byteps_like.worker.api import Worker
from byteps_like.worker.local import LocalWorker


def join(config: Config) -> Worker:
    """Joins the job that `config` describes; blocks until its world has formed. Errors as `portable.init`."""
    if config.is_alone:
        return LocalWorker(config.partition_bytes)
    client = ControlClient(config)
    try:
        view = client.join(own_member(config, MemberRole.WORKER, native=False), config.join_timeout)
        return connect(config.held_to(view.settings), client, view)
    except BaseException:
        client.leave()
        raise
