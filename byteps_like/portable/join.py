"""How a process becomes a portable worker, native core or not."""

from __future__ import annotations

import os
import socket
from dataclasses import replace

from byteps_like.config import Config
from byteps_like.control.calls.client import ControlClient
from byteps_like.control.hosts.routes import host_id
from byteps_like.control.types import Member, MemberRole, View
from byteps_like.portable.connect import connect
from byteps_like.worker.api import Worker
from byteps_like.worker.local import LocalWorker


def join(config: Config) -> Worker:
    """Joins the job that `config` describes; blocks until its world has formed. Errors as `portable.init`."""
    if config.servers == 0 and config.world_size == 1:
        return LocalWorker(config.partition_bytes)
    client = ControlClient(config)
    try:
        view = client.join(_member(config), config.join_timeout)
        return connect(_with_job_settings(config, view), client, view)
    except BaseException:
        client.leave()
        raise


def _member(config: Config) -> Member:
    return Member(
        MemberRole.WORKER, config.rank, host_id(), config.host or socket.gethostname(), os.getpid(), native=False
    )


def _with_job_settings(config: Config, view: View) -> Config:
    known = {name: value for name, value in view.settings.items() if name in config.job_settings()}
    return replace(config, **{name: type(getattr(config, name))(value) for name, value in known.items()})
