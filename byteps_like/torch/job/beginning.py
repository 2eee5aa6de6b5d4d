"""What `init()` begins with: the settings, and where the ranks meet if nobody has named a scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch.distributed as dist

from byteps_like.config import Config
from byteps_like.control.calls.client import decline, query_status
from byteps_like.control.calls.returning import is_returning
from byteps_like.control.hosts.address import own_host
from byteps_like.control.hosts.routes import host_id
from byteps_like.control.types import MemberRole
from byteps_like.errors import BytePSLikeError, ConfigError
from byteps_like.worker import embedded
from byteps_like.worker.meeting import MeetingSeat
from byteps_like.worker.standing import Standing

_WITHOUT_STORE = ("fake", "mpi")
_ASK_SECONDS = 2.0


def begin(settings: Mapping[str, Any]) -> tuple[Config, MeetingSeat | None]:
    """`settings` over the environment, and the store of torch's default group if it is to be used.

    Raises ConfigError; then the other ranks are told, if it can be found out where they meet.
    """
    try:
        return at_group(Config.from_env(**settings), settings)
    except ConfigError as error:
        _tell(error, settings)
        raise


def at_group(config: Config, wanted: Mapping[str, Any]) -> tuple[Config, MeetingSeat | None]:
    """Where no scheduler is named and torch's default group has been made, its rank, size and store count.

    Not if `wanted`, by arguments, is another rank or size: after suspend() the world may be another one.
    """
    if config.scheduler or not (dist.is_available() and dist.is_initialized()):
        return config, None
    rank, size, backend = dist.get_rank(), dist.get_world_size(), dist.get_backend()
    others = [name for name, own in (("rank", rank), ("world_size", size)) if wanted.get(name, own) not in (None, own)]
    if others or backend in _WITHOUT_STORE:
        return config, None
    store = dist.distributed_c10d._get_default_store()
    found = replace(config, rank=rank, world_size=size)
    return found, MeetingSeat(store, rank, size, config.join_timeout, config.rendezvous_host or _host_at(found, store))


def place_beside(config: Config) -> Standing | None:
    """Where this process would stand beside the workers of an elastic job, if their world runs; None: there are none,
    or it comes back to them."""
    if not config.elastic or not config.scheduler or is_returning():
        return None
    try:
        status = query_status(config, _ASK_SECONDS)
    except BytePSLikeError:
        return None  # it will be told what is wrong when it joins
    workers = [one.member for one in status.members if one.member.role is MemberRole.WORKER and one.state == "running"]
    if status.state != "running" or not workers:
        return None
    near = sum(member.host_id == host_id() for member in workers)
    beside = Standing(len(workers), (*(member.number for member in workers), 0), near, near + 1)
    return beside.as_told(config.local_rank, config.local_size)


def _host_at(config: Config, store: Any) -> str:
    from byteps_like.torch.job.rendezvous import reaching  # needs more of torch

    return own_host(reaching(config, store))


def _tell(error: ConfigError, settings: Mapping[str, Any]) -> None:
    try:
        config, seat = at_group(Config.of_meeting(**settings), settings)
    except ConfigError:
        return  # where to meet isn't known
    if not config.servers and config.world_size == 1:
        return
    if config.scheduler:
        decline(config, error)
    elif seat is not None or config.rendezvous_host:
        embedded.tell(error, config, seat)
