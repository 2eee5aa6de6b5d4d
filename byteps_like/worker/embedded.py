"""Under torchrun nothing else needs to be started: rank 0 runs scheduler and servers inside its own process.

The other ranks find the scheduler's address and the job's secret in the store of torchrun's agent, under
`byteps_like/<job>/<restart count>/<how often this process has connected>`. The secret is then as private as that
store, which asks nobody who he is: whoever reaches its port during the seconds between the start and the forming of
the world can read it. Give BYTEPS_LIKE_SECRET_FILE to all ranks and it is not published; on a network you don't
trust, also start the scheduler yourself. All servers run on rank 0's host, in threads of its process.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any, Protocol

from byteps_like.collectives.api import Group
from byteps_like.config import Config
from byteps_like.control import secret
from byteps_like.control.address import join_address
from byteps_like.dtypes import Op
from byteps_like.errors import BytePSLikeError, ConfigError, DeadlineError, InvalidArgumentError
from byteps_like.worker.api import (
    Declared,
    Feedback,
    Handle,
    KernelsOf,
    Links,
    MovesShares,
    Placed,
    Places,
    SharedMemory,
    TensorSpec,
    Tunable,
    UsesGpu,
    Worker,
)

log = logging.getLogger(__name__)

_LAST_TO_LEAVE_SECONDS = 30.0
_AFTER_FAILURE_SECONDS = 1.0
_connections: Counter[tuple[str, int, int]] = Counter()


class Store(Protocol):
    """What is used of torch.distributed's stores."""

    def get(self, key: str) -> bytes:
        """Blocks until somebody has set the key; RuntimeError at the store's timeout."""

    def set(self, key: str, value: str) -> None:
        """Publishes a value."""

    def delete_key(self, key: str) -> bool:
        """Takes it out."""


class Services:
    """What this process runs for the job besides its worker; nothing on ranks other than 0."""

    def __init__(self) -> None:
        self._formed: Callable[[], None] | None = None
        self._stack = ExitStack()

    def formed(self) -> None:
        """The world has formed: every rank has read the secret, which is taken out of the store."""
        if self._formed is not None:
            self._formed()

    def close(self) -> None:
        """Waits until the other ranks have left (bounded), then stops everything. Idempotent."""
        self._stack.close()


def bootstrap(config: Config, open_store: Callable[[Config], Store] | None = None) -> tuple[Config, Services]:
    """The configuration with a scheduler's address and a secret, and what this process runs for the job.

    Collective: every rank calls it equally often. Blocks up to `join_timeout`. Raises ConfigError when torchrun has
    no store of its own, DeadlineError when rank 0 does not come.
    """
    own = (config.job, config.rendezvous_restart, config.rank)
    _connections[own] += 1
    prefix = f"byteps_like/{config.job}/{config.rendezvous_restart}/{_connections[own]}"
    store = (open_store or _torchrun_store)(config)
    if config.rank == 0:
        return _host(config, store, prefix)
    try:
        address = store.get(f"{prefix}/scheduler").decode()
        text = "" if _has_secret(config) else store.get(f"{prefix}/secret").decode()
    except RuntimeError as error:  # torch's DistStoreError and DistNetworkError
        raise DeadlineError(
            f"rank 0 did not publish its scheduler in torchrun's store at {_store_address(config)} within"
            f" {config.join_timeout:.0f} s: {error}",
            rank=config.rank,
            operation="init",
        ) from error
    return _with(config, address, text), Services()


def _host(config: Config, store: Store, prefix: str) -> tuple[Config, Services]:
    """Rank 0: starts scheduler and servers, then publishes where they are."""
    from byteps_like.control.scheduler import SchedulerServer
    from byteps_like.server.process import EmbeddedServer

    host = config.host or config.rendezvous_host
    text = "" if _has_secret(config) else secret.new()
    services = Services()
    try:
        scheduler = SchedulerServer(_with(replace(config, role="scheduler"), join_address(host, 0), text))
        address = scheduler.start()
        services._stack.callback(scheduler.stop)
        servers = _with(replace(config, role="server", rank=-1, local_rank=0, host=host), address, text)
        for _ in range(config.servers):
            server = EmbeddedServer(servers)
            server.start()
            services._stack.callback(server.stop)
        services._stack.callback(_wait_for_the_others, scheduler)
        if text:
            store.set(f"{prefix}/secret", text)
            services._formed = lambda: _forget(store, f"{prefix}/secret")
        store.set(f"{prefix}/scheduler", address)
    except BaseException:
        services.close()
        raise
    log.info("rank 0 runs the scheduler (%s) and %d servers of job %r", address, config.servers, config.job)
    return _with(config, address, text), services


class _Scheduler(Protocol):
    @property
    def failed(self) -> bool:
        """Whether the job has failed."""

    def wait(self, timeout: float | None = None) -> bool:
        """Whether the job has ended."""


def _wait_for_the_others(scheduler: _Scheduler) -> None:
    """Rank 0 must not take the servers away while another rank still waits for its last results."""
    for _ in range(int(_LAST_TO_LEAVE_SECONDS / _AFTER_FAILURE_SECONDS)):
        if scheduler.wait(_AFTER_FAILURE_SECONDS) or scheduler.failed:
            return
    log.warning("rank 0 ends, and with it scheduler and servers, though other ranks have not left the job yet")


def _forget(store: Store, key: str) -> None:
    try:
        store.delete_key(key)
    except RuntimeError as error:
        log.debug("the secret stays in torchrun's store: %s", error)


def _has_secret(config: Config) -> bool:
    return bool(config.secret or config.secret_file)


def _with(config: Config, scheduler: str, text: str) -> Config:
    found = replace(config, scheduler=scheduler, explicit=config.explicit | {"scheduler", "num_servers"})
    found = replace(found, num_servers=config.servers)
    return replace(found, secret=text) if text else found


def _store_address(config: Config) -> str:
    return f"{config.rendezvous_host}:{config.rendezvous_port}"


def _torchrun_store(config: Config) -> Store:
    """A client of the store that torchrun's agent keeps. The one place in this package's runtime that needs torch."""
    if not config.rendezvous_store:
        raise ConfigError(
            "no scheduler is known and MASTER_ADDR is set, but not by torchrun (it has no store to meet at): start the"
            " workers by torchrun or `byteps-like run`, or set BYTEPS_LIKE_SCHEDULER=host:port"
        )
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch does not list it in __all__

    try:
        return TCPStore(
            config.rendezvous_host,
            config.rendezvous_port,
            is_master=False,
            timeout=timedelta(seconds=config.join_timeout),
        )
    except RuntimeError as error:
        raise DeadlineError(f"torchrun's store at {_store_address(config)} does not answer: {error}") from error


class Owning:
    """A worker together with what its process runs for the job; closing it closes both. See worker.api.Worker."""

    def __init__(self, worker: Worker, services: Services) -> None:
        self._worker, self._services = worker, services
        self.rank, self.size = worker.rank, worker.size
        self.local_rank, self.local_size = worker.local_rank, worker.local_size
        self.route = worker.route
        services.formed()

    def declare(self, specs: Sequence[TensorSpec]) -> list[Declared]:
        """See worker.api.Worker."""
        return self._worker.declare(specs)

    def allocate(self, nbytes: int) -> SharedMemory:
        """See worker.api.Worker."""
        return self._worker.allocate(nbytes)

    def empty_shared(self, nbytes: int) -> SharedMemory:
        """See worker.api.Worker."""
        return self._worker.empty_shared(nbytes)

    def group(self, name: str, ranks: Sequence[int] | None = None) -> Group:
        """See worker.api.Worker."""
        return self._worker.group(name, ranks)

    def push_pull(
        self,
        declared: Declared,
        address: int,
        op: Op,
        *,
        root: int = 0,
        parts: range | None = None,
        priority: int | None = None,
        **more: Any,
    ) -> Handle:
        """See worker.api.Worker, UsesGpu and MovesShares."""
        return self._worker.push_pull(declared, address, op, root=root, parts=parts, priority=priority, **more)

    def moves_shares(self) -> bool:
        """See worker.api.MovesShares."""
        return isinstance(self._worker, MovesShares) and self._worker.moves_shares()

    def use_gpu(self, gpu: Any, kernels: KernelsOf) -> bool:
        """See worker.api.UsesGpu."""
        return isinstance(self._worker, UsesGpu) and self._worker.use_gpu(gpu, kernels)

    def encodes_on_gpu(self, declared: Declared) -> bool:
        """See worker.api.UsesGpu."""
        return isinstance(self._worker, UsesGpu) and self._worker.encodes_on_gpu(declared)

    def compensate(self, declared: Declared, feedback: Feedback | None) -> None:
        """See worker.api.Worker."""
        self._worker.compensate(declared, feedback)

    def rescale(self, declared: Declared, factor: float) -> None:
        """See worker.api.Worker."""
        self._worker.rescale(declared, factor)

    def placed(self, declared: Declared, follows: bool = True) -> Declared:
        """See worker.api.Worker."""
        return self._worker.placed(declared, follows)

    def use(self, links: Links) -> None:
        """See worker.api.Tunable."""
        self._tunable().use(links)

    def retire(self, declared: Declared) -> None:
        """See worker.api.Tunable."""
        self._tunable().retire(declared)

    def places(self) -> Places:
        """See worker.api.Placed."""
        return self._worker.places() if isinstance(self._worker, Placed) else Places(1, 0)

    def _tunable(self) -> Tunable:
        if not isinstance(self._worker, Tunable):
            raise InvalidArgumentError("this kind of worker can't be tuned")
        return self._worker

    def note_route(self, name: str) -> None:
        """See worker.api.Worker."""
        self._worker.note_route(name)

    def barrier(self, timeout: float | None = None) -> None:
        """See worker.api.Worker."""
        self._worker.barrier(timeout)

    def stats(self) -> dict[str, int]:
        """See worker.api.Worker."""
        return self._worker.stats()

    def close(self) -> None:
        """Leaves the job; on rank 0 then waits for the others, and ends scheduler and servers. Idempotent."""
        try:
            self._worker.close()
        except BytePSLikeError as error:
            log.debug("leaving: %s", error)
        self._services.close()
