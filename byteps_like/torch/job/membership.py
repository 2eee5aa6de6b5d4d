"""Joining the job and leaving it: init, shutdown, suspend, resume; and what all of its ranks wait for together."""

from __future__ import annotations

import atexit
import logging
import threading
from contextlib import suppress
from typing import Any

from byteps_like.config import Config
from byteps_like.control.calls.returning import is_returning, returning
from byteps_like.control.calls.session import LeftOutError
from byteps_like.errors import InvalidArgumentError, PeerLostError
from byteps_like.torch.job import runtime as _runtime
from byteps_like.torch.job.beginning import at_group, begin, place_beside
from byteps_like.torch.job.pacing import pace
from byteps_like.torch.job.process_sets import prepared, register
from byteps_like.torch.job.runtime import Pending, Runtime
from byteps_like.torch.job.tracing import follow_recorder
from byteps_like.worker.api import Worker
from byteps_like.worker.local import LocalWorker
from byteps_like.worker.meeting import MeetingSeat

logger = logging.getLogger(__name__)

_ATTEMPTS = 8
"""Worlds in a row that may end before this process is in them."""

_lock = threading.Lock()


def init(
    lazy: object = True, process_sets: object = None, *, config: Config | None = None, **settings: Any
) -> None:  # fmt: skip
    """Joins the job that the environment, `config` or `settings` (named as in Config) describe.

    Without any settings, this process is a world of one. If no scheduler is set, the ranks meet at the store of torch's
    default process group, which then gives rank and size, or at MASTER_ADDR and MASTER_PORT like torch's `env://`.
    Blocks until all members have joined. A second call without `shutdown()` in between does nothing.

    To an elastic job whose world runs already, or begins without it for want of room, it only comes: it joins with its
    first operation, or in `elastic.run`, which blocks instead. Until then `rank()` and `size()` are those that it would
    have now.

    `process_sets`, as in Horovod, lists initial ProcessSets or lists of ranks. `lazy` is accepted for BytePS and
    ignored. Horovod's `comm`, the argument in the same position, must mean all ranks: None or an empty list.

    Raises ConfigError; RefusedError, which names who refused or can't start, and why; DeadlineError, which names the
    missing members.
    """
    sets = prepared(process_sets or ())
    if any(given not in (None, True, False, []) for given in (lazy, settings.pop("comm", None))):
        raise InvalidArgumentError("init(comm=...) is not supported: the world comes from the launcher")
    with _lock:
        if not _runtime.initialized():
            _come(*(begin(settings) if config is None else at_group(config, vars(config))))
    for item in sets:
        if not _runtime.current().has_scope(item.process_set_id or -1, item.ranks):
            register(_runtime.current(), item)


def _come(config: Config, seat: MeetingSeat | None) -> None:
    while not _runtime.initialized():
        standing = place_beside(config)
        if standing is not None:
            _runtime.postpone(Pending(config, standing, _join_pending))
            return
        with suppress(LeftOutError):
            _enter_next(config, seat, waits=not config.elastic or is_returning())


def _enter_next(config: Config, seat: MeetingSeat | None = None, waits: bool = True) -> None:
    """An elastic job's members that are lost while a world forms, or its members connect, are done without."""
    if not config.elastic:
        _enter(config, seat, waits)
        return
    for attempt in range(_ATTEMPTS):
        try:
            with returning():
                _enter(config, seat, waits)
            return
        except PeerLostError as error:
            if error.peer == "scheduler" or attempt == _ATTEMPTS - 1:
                raise
            logger.warning("the next world ended before it began: %s; joining another one", error)


def _enter(config: Config, seat: MeetingSeat | None, waits: bool) -> None:
    runtime = Runtime(_connect(config, seat, waits), config.partition_bytes, config)
    pace(runtime)
    serve(runtime)
    _runtime.install(runtime)
    follow_recorder()
    # Registered last, so run first: what a worker needs to leave in order (gRPC) has exit handlers too.
    atexit.unregister(shutdown)
    atexit.register(shutdown)


def _join_pending() -> None:
    with _lock:
        pending = _runtime.pending()
        if pending is not None:
            _enter_next(pending.config)


def _connect(config: Config, seat: MeetingSeat | None, waits: bool) -> Worker:
    if config.is_alone:
        return LocalWorker(config.partition_bytes)
    # Not at the top: a world of one needs neither the control plane nor the native core.
    from byteps_like.worker.session import connect

    return connect(config, seat, waits)


def serve(runtime: Runtime) -> None:
    """Answers Prometheus, if the settings say so."""
    config, worker = runtime.config, runtime.worker
    if config.worker_metrics_port:
        from byteps_like.server.metrics import serve_metrics  # few ask for it

        labels = {"job": config.job, "worker": str(worker.rank)}
        port = config.worker_metrics_port + worker.local_rank
        runtime.closing.callback(serve_metrics((config.metrics_host, port), runtime.stats, labels))


def shutdown() -> None:
    """Leaves the job; operations in flight fail with ShutdownError. Does nothing if not initialized."""
    with _lock:
        leaving = _runtime.install(None)
    if leaving is not None:
        leaving.close()


def suspend() -> None:
    """Leaves the job but keeps optimizers and modules usable, so that `resume()` can join a world of another size.

    Until then `rank()`, `size()`, `local_rank()` and `local_size()` return their last values, as in BytePS. Operations
    in flight fail with ShutdownError; tensor names are agreed on again after `resume()`. Raises NotInitializedError.
    """
    now = _runtime.standing()
    shutdown()
    with _lock:
        _runtime.install(None, now)


def resume(num_workers: int, num_servers: int, global_rank: int = -1, context: object = None) -> None:  # noqa: ARG001
    """Joins the job again after `suspend()`, as rank `global_rank` of `num_workers` workers with `num_servers` servers.

    Existing optimizers and DistributedDataParallel modules continue in the new world. `global_rank` of -1 lets the
    scheduler assign it. `context` is BytePS's and ignored. Other settings come from the environment, as for `init()`.
    Blocks until all members have joined. Raises as `init()` does.
    """
    init(world_size=num_workers, num_servers=num_servers, rank=global_rank)


def stats() -> dict[str, float]:
    """Returns this worker's counters: bytes and frames sent and received, each a number by name.

    payload_sent and payload_received count bytes of data; bytes_*, bytes including headers; frames_*, frames. If
    gradients are encoded, there are also measures of the encoding error, those of the worst arena: compression_nmse,
    compression_clamped, compression_residual, compression_raw (docs/how-to/compression.md, "Automatic selection").
    Of a process that has yet to join its elastic job all are 0. Never blocks. Raises NotInitializedError.
    """
    if _runtime.has_yet_to_join():
        return {**LocalWorker().stats()}
    return _runtime.installed().stats()


def barrier(process_set: object = None, timeout: float | None = None) -> None:
    """Blocks until all workers (of `process_set`) have called it. Raises DeadlineError after `timeout` seconds."""
    runtime = _runtime.current()
    runtime.barrier(runtime.scope(process_set), timeout)


def join(device: int = -1) -> int:  # noqa: ARG001 - Horovod's
    """Lets ranks with fewer batches finish: contributes zeros to other ranks' reductions until all ranks have joined.

    Call it when this rank's batches run out. Blocks until the last rank has joined. Returns that rank, from which to
    broadcast parameters.

    While a rank has joined, the others may call allreduce and push_pull and make optimizer steps, over all ranks.
    Averages still divide by size(), and Min, Max and Product see zeros, too. Any other operation raises
    InvalidArgumentError on the rank that calls it, even if the operation was in flight already. `device` is Horovod's
    and ignored.

    Raises PeerLostError if a rank dies meanwhile; InvalidArgumentError with local shares of gradients, and where there
    are no collectives among the workers (portable workers); NotInitializedError.
    """
    runtime = _runtime.current()
    runtime.finish_updates()
    runtime.backlog.finish()
    if runtime.shares:
        raise InvalidArgumentError("join() is not supported with local shares of gradients; set local_shares=off")
    if runtime.worker.size == 1:
        return 0
    if runtime.joiner is None:
        runtime.worker.group("join")  # says why there are none
        raise InvalidArgumentError("join() needs collectives among the workers")
    last: int = runtime.joiner.join()
    runtime.begin_anew()
    return last
