"""How a process becomes a worker: which kind, of which world."""

from __future__ import annotations

import importlib.util
import logging
import os
import socket
from dataclasses import replace

from byteps_like.config import Config
from byteps_like.control.client import ControlClient
from byteps_like.control.routes import host_id
from byteps_like.control.types import Member, MemberRole, World
from byteps_like.errors import BytePSLikeError, ConfigError
from byteps_like.worker.api import Worker
from byteps_like.worker.local import LocalWorker

logger = logging.getLogger(__name__)


def connect(config: Config) -> Worker:
    """Joins the job that `config` describes; blocks until its world has formed.

    A world of one without servers needs no other process. Under torchrun without a scheduler, rank 0 embeds
    scheduler and servers. Without the native core the worker is the portable one, and a warning says so.
    Raises RefusedError (who refused, and why), DeadlineError (who is missing), ConfigError.
    """
    if config.servers == 0 and config.world_size == 1:
        return LocalWorker(config.partition_bytes)
    if not config.scheduler:
        return _connect_embedded(config)
    client = ControlClient(config)
    try:
        own = host_id()
        world = client.join(_member(config, own), config.join_timeout)
        return make_worker(config, client, world, own)
    except BaseException:
        client.leave()
        raise


def make_worker(config: Config, client: ControlClient, world: World, own_host_id: str) -> Worker:
    """The worker of a member that has joined: native where the core is there, else portable."""
    config = _with_job_settings(config, world)
    if native_core():
        from byteps_like.worker.native import NativeWorker

        return NativeWorker(config, client, world, client.rank, own_host_id)
    from byteps_like import portable

    logger.warning("the native core is not installed: using the portable worker (NumPy and ZeroMQ), which is slower")
    return portable.connect(config, client, world)


def native_core() -> bool:
    """Whether `byteps_like._core` is there. BYTEPS_LIKE settings have no say: it is built or it is not."""
    return importlib.util.find_spec("byteps_like._core") is not None


def _connect_embedded(config: Config) -> Worker:
    if not config.rendezvous_host:
        raise ConfigError(
            f"this process is one of {config.world_size} workers but knows no scheduler: set BYTEPS_LIKE_SCHEDULER="
            "host:port, or start it by 'byteps-like run' or torchrun"
        )
    from byteps_like.worker import embedded

    found, services = embedded.bootstrap(config)
    try:
        worker = connect(found)
    except BytePSLikeError:
        services.close()
        raise
    return embedded.Owning(worker, services)


def _member(config: Config, own_host_id: str) -> Member:
    return Member(
        role=MemberRole.WORKER,
        rank=config.rank,
        host_id=own_host_id,
        host=config.host or socket.gethostname(),
        pid=os.getpid(),
        native=native_core(),
    )


def _with_job_settings(config: Config, world: World) -> Config:
    """What the scheduler holds everybody to counts, whatever was the default here."""
    known = {name: value for name, value in world.settings.items() if name in config.job_settings()}
    typed = {name: type(getattr(config, name))(value) for name, value in known.items()}
    return replace(config, **typed)
