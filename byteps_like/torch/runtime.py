"""This process's place in the job: init, shutdown, suspend, resume, and the runtime that all other calls use."""

from __future__ import annotations

import atexit
import os
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from byteps_like.config import Config
from byteps_like.errors import InvalidArgumentError, NotInitializedError
from byteps_like.torch.naming import NameTable
from byteps_like.worker.api import Declared, TensorSpec, Worker
from byteps_like.worker.local import LocalWorker, check_same


class Runtime:
    """A worker, and what belongs to its membership of one epoch: declared names, names in flight, counters."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.names = NameTable()
        self.bulk_lock = threading.Lock()
        self.closed = False
        self._pid = os.getpid()
        self._declared: dict[str, Declared] = {}
        self._counters: Counter[str] = Counter()
        self._lock = threading.Lock()

    def declare(self, specs: Sequence[TensorSpec]) -> list[Declared]:
        """Agrees on names with all ranks: one round trip for those that are new here, none for the others.

        Raises MismatchError if a name was declared with another dtype or shape, here or on another rank.
        """
        known = self._declared
        fresh = [spec for spec in specs if spec.name not in known]
        if fresh:
            known.update((item.spec.name, item) for item in self.worker.declare(fresh))
        for spec in specs:
            if known[spec.name].spec != spec:
                check_same(known[spec.name].spec, spec)
        return [known[spec.name] for spec in specs]

    def count(self, kind: str) -> int:
        """0, 1, 2, ... for each kind: the same on all ranks if these make their things in the same order."""
        with self._lock:
            self._counters[kind] += 1
            return self._counters[kind] - 1

    def check_root(self, root: int) -> None:
        """Raises InvalidArgumentError unless `root` is a rank of this world."""
        if not 0 <= root < self.worker.size:
            raise InvalidArgumentError(f"root_rank={root} is not a rank of a world of {self.worker.size}")

    def close(self) -> None:
        """Leaves the job. Idempotent; does nothing in a forked child, which is no member."""
        if not self.closed and os.getpid() == self._pid:
            self.closed = True
            self.worker.close()


_process: Runtime | None = None
_lock = threading.Lock()
_bound: ContextVar[Runtime | None] = ContextVar("byteps_like_runtime", default=None)


def current() -> Runtime:
    """The runtime of this thread (see `bound`), else of the process. Raises NotInitializedError without one."""
    runtime = _bound.get() or _process
    if runtime is None:
        raise NotInitializedError("byteps_like.torch is not initialized; call init() first")
    return runtime


@contextmanager
def bound(worker: Worker) -> Iterator[Runtime]:
    """Within the block, calls of this thread go through `worker`: for hosts of several ranks in one process."""
    runtime = Runtime(worker)
    token = _bound.set(runtime)
    try:
        yield runtime
    finally:
        _bound.reset(token)
        runtime.close()


def init(lazy: bool = True, *, config: Config | None = None, **settings: Any) -> None:  # noqa: ARG001 - BytePS's
    """Joins the job that the environment (or `config`, or `settings` by their names in Config) describes.

    Without any, this process is a world of one. Blocks until all members have joined. A second call without a
    `shutdown()` in between does nothing. `lazy` is BytePS's and ignored, as are Horovod's `comm` and `process_sets`.
    Raises ConfigError, RefusedError (who refused, and why), DeadlineError (who is missing).
    """
    global _process
    for ignored in ("comm", "process_sets"):
        if settings.pop(ignored, None) is not None:
            raise InvalidArgumentError(f"init({ignored}=...) is not supported: the world comes from the launcher")
    with _lock:
        if _process is None and _bound.get() is None:
            _process = Runtime(_connect(config or Config.from_env(**settings)))
            # Registered last, so run first: what a worker needs to leave in order (gRPC) has exit handlers too.
            atexit.unregister(shutdown)
            atexit.register(shutdown)


def _connect(config: Config) -> Worker:
    if config.servers == 0 and config.world_size == 1:
        return LocalWorker(config.partition_bytes)
    # Not at the top: a world of one needs neither the control plane nor the native core.
    from byteps_like.worker.session import connect

    return connect(config)


def shutdown() -> None:
    """Leaves the job; outstanding handles fail with ShutdownError. Does nothing when not initialized."""
    global _process
    with _lock:
        leaving, _process = _process, None
    if leaving is not None:
        leaving.close()


def initialized() -> bool:
    """Whether `init()` has been called, and `shutdown()` has not."""
    return (_bound.get() or _process) is not None


is_initialized = initialized


def suspend() -> None:
    """Leaves the job so that it can be resumed with another world; names are agreed on again then."""
    shutdown()


def resume(num_workers: int, num_servers: int, global_rank: int = -1, context: object = None) -> None:  # noqa: ARG001
    """Joins again, as rank `global_rank` of `num_workers` with `num_servers` servers. `context` is ignored.

    Optimizers and DistributedDataParallel modules made before go on in the new world.
    """
    init(world_size=num_workers, num_servers=num_servers, rank=global_rank)


def rank() -> int:
    """This worker's rank, 0 to size() - 1."""
    return current().worker.rank


def size() -> int:
    """Number of workers."""
    return current().worker.size


def local_rank() -> int:
    """This worker's rank among those on its host."""
    return current().worker.local_rank


def local_size() -> int:
    """Number of workers on this host."""
    return current().worker.local_size


def stats() -> dict[str, int]:
    """This worker's counters so far: payload_sent, payload_received, bytes_* (with headers), frames_* each way."""
    return current().worker.stats()


def barrier(timeout: float | None = None) -> None:
    """Blocks until all workers have called it. Raises DeadlineError after `timeout` seconds."""
    current().worker.barrier(timeout)
