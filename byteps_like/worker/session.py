"""How a process becomes a worker: which kind, of which world."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from byteps_like.config import Config
from byteps_like.control.calls.client import ControlClient, decline
from byteps_like.control.hosts.member import own_member
from byteps_like.control.types import MemberRole
from byteps_like.errors import BytePSLikeError, ConfigError
from byteps_like.timeline.orders import parse_steps
from byteps_like.timeline.recorder import recorder
from byteps_like.worker import embedded
from byteps_like.worker.api import Worker
from byteps_like.worker.collective import CollectiveWorker
from byteps_like.worker.local import LocalWorker
from byteps_like.worker.meeting import MeetingSeat

logger = logging.getLogger(__name__)


def connect(config: Config, seat: MeetingSeat | None = None, waits: bool = True) -> Worker:
    """Joins the job that `config` describes; blocks until its world has formed. `waits`: see ControlClient.join.

    A world of one without servers needs no other process. Without a scheduler the ranks meet at a store (`seat`,
    else that of MASTER_ADDR), and rank 0 embeds scheduler and servers. Without the native core the worker is the
    portable one, and a warning says so.
    Raises RefusedError (who refused, and why), DeadlineError (who is missing), ConfigError.
    """
    if config.is_alone:
        return LocalWorker(config.partition_bytes)
    if not config.scheduler:
        if config.elastic:
            raise ConfigError(
                "an elastic job needs a scheduler that outlives its workers: use `byteps-like run`, or start"
                " `byteps-like scheduler` and set BYTEPS_LIKE_SCHEDULER=host:port"
            )
        return _connect_embedded(config, seat)
    client = ControlClient(config)
    with ExitStack() as undo:
        undo.callback(client.leave)
        join = _join_native if native_core() else _join_portable
        worker = join(config, client, undo, waits)
        undo.pop_all()
        return worker


def _join_native(config: Config, client: ControlClient, undo: ExitStack, waits: bool) -> Worker:
    """Listens for the other workers, then joins: they learn of the address by the world."""
    from byteps_like.collectives.communicator import Communicator
    from byteps_like.worker.engine.native import NativeWorker

    with _declining(config):
        if config.trace:
            recorder.take(parse_steps(config.trace, config.trace_steps))
        communicator = Communicator(config, config.job, client.secret)
    undo.callback(communicator.close)
    member = own_member(config, MemberRole.WORKER, urls=communicator.own.urls, native=native_core())
    view = client.join(member, config.join_timeout, waits)
    config = config.held_to(view.settings)
    worker = NativeWorker(config, client, view, communicator)
    if view.servers:
        return worker
    patience = config.failure_timeout if view.finishes_sums else 0.0
    return CollectiveWorker(worker, config.partition_bytes, patience=patience)


@contextmanager
def _declining(config: Config) -> Iterator[None]:
    """A block whose failure the others hear of, who would wait for this rank."""
    try:
        yield
    except BytePSLikeError as error:
        decline(config, error)
        raise


def _join_portable(config: Config, client: ControlClient, _: ExitStack, waits: bool) -> Worker:
    from byteps_like import portable

    view = client.join(own_member(config, MemberRole.WORKER, native=native_core()), config.join_timeout, waits)
    logger.warning("the native core is not installed: using the portable worker (NumPy and ZeroMQ), which is slower")
    return portable.connect(config.held_to(view.settings), client, view)


def native_core() -> bool:
    """Whether `byteps_like._core` is there. BYTEPS_LIKE settings have no say: it is built or it is not."""
    return importlib.util.find_spec("byteps_like._core") is not None


def _connect_embedded(config: Config, seat: MeetingSeat | None) -> Worker:
    if seat is None and not config.rendezvous_host:
        raise ConfigError(
            f"this process is one of {config.world_size} workers but has no rendezvous address: set MASTER_ADDR and"
            " MASTER_PORT (a free port of rank 0's host), or BYTEPS_LIKE_SCHEDULER=host:port, or start it by"
            " 'byteps-like run' or torchrun"
        )
    found, services = embedded.bootstrap(config, seat)
    try:
        worker = connect(found)
    except BytePSLikeError:
        services.close()
        raise
    return embedded.Owning(worker, services)
