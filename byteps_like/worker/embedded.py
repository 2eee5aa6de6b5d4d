"""Where no scheduler is given, nothing else needs to be started: rank 0 runs it, and servers, in its own process.

The ranks meet at a store of torch's: the default process group's if there is one, else at MASTER_ADDR and MASTER_PORT
(see meeting). There the others find the scheduler's address and the job's secret, under
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
from dataclasses import dataclass, replace
from typing import Any, Protocol

from byteps_like.collectives.api import Group
from byteps_like.config import Config
from byteps_like.control.calls import secret
from byteps_like.control.hosts.address import join_address, own_host
from byteps_like.dtypes import Op
from byteps_like.errors import BytePSLikeError, ConfigError, CorruptError, InvalidArgumentError
from byteps_like.worker.api import (
    Answer,
    Attends,
    Declared,
    Feedback,
    Forgets,
    Handle,
    HearsOfChanges,
    KernelsOf,
    Links,
    Meeting,
    Meets,
    MovesShares,
    Placed,
    Places,
    SharedMemory,
    TensorSpec,
    Tunable,
    UsesGpu,
    Worker,
)
from byteps_like.worker.keeping import Keeps, KeepSpec, KeptTensor
from byteps_like.worker.meeting import MeetingSeat, Notes, seat_of
from byteps_like.worker.standing import Standing, Stands

log = logging.getLogger(__name__)

_LAST_TO_LEAVE_SECONDS = 30.0
_AFTER_FAILURE_SECONDS = 1.0
_connections: Counter[tuple[str, int, int]] = Counter()


class Services:
    """What this process runs for the job besides its worker; nothing on ranks other than 0."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def add(self, stop: Callable[[], None]) -> None:
        """Something that `close` stops, before what was added earlier."""
        self._stack.callback(stop)

    def close(self) -> None:
        """Waits until the other ranks have left (bounded), then stops everything. Idempotent."""
        self._stack.close()


def bootstrap(config: Config, seat: MeetingSeat | None = None) -> tuple[Config, Services]:
    """The configuration with a scheduler's address and a secret, and what this process runs for the job.

    Collective: every rank calls it equally often. `seat`: where to meet; None: at MASTER_ADDR. Blocks up to
    `join_timeout`. Raises ConfigError where that can't be, DeadlineError that names the ranks which don't come,
    RefusedError that names one which can't start.
    """
    seat = seat or seat_of(config)
    notes, services = _notes(config, seat), Services()
    own: dict[str, Any] = {"given": secret.has_secret(config)}
    try:
        with notes.telling():
            secret.require_secret(config)
            scheduler = _host(config, seat, services) if seat.rank == 0 else None
            if scheduler is not None:
                own |= {"scheduler": scheduler.address, "secret": scheduler.secret}
        records = notes.exchange(own)
        address, text = _of_rank_0(records)
    except BaseException:
        services.close()
        raise
    if scheduler is not None:
        services.add(lambda: _wait_for_the_others(scheduler.server))
    return _with(config, address, text), services


def _of_rank_0(records: Sequence[dict[str, Any]]) -> tuple[str, str]:
    """The scheduler's address, and the secret unless all were given it."""
    address, text = records[0].get("scheduler"), records[0].get("secret")
    if not isinstance(address, str) or not isinstance(text, str):
        raise CorruptError("rank 0 has published no scheduler address in the store")
    given = [rank for rank, record in enumerate(records) if record.get("given")]
    if given and len(given) < len(records):
        lacks = next(rank for rank in range(len(records)) if rank not in given)
        raise ConfigError(
            f"rank {given[0]} was given the job's secret, rank {lacks} was not: set BYTEPS_LIKE_SECRET_FILE on all"
            " ranks or on none"
        )
    return address, text


def tell(error: Exception, config: Config, seat: MeetingSeat | None = None) -> None:
    """In the place of `bootstrap`, of which `config` holds no more than it needs: this rank can't start."""
    try:
        _notes(config, seat or seat_of(config)).fail(error)
    except BytePSLikeError as unheard:
        log.debug("can't notify the other ranks: %s", unheard)


def _notes(config: Config, seat: MeetingSeat) -> Notes:
    own = (config.job, config.rendezvous_restart, seat.rank)
    _connections[own] += 1
    return Notes(seat, f"byteps_like/{config.job}/{config.rendezvous_restart}/{_connections[own]}", "init")


@dataclass(frozen=True)
class _Hosted:
    server: _Scheduler
    address: str
    secret: str


def _host(config: Config, seat: MeetingSeat, services: Services) -> _Hosted:
    """Rank 0: starts scheduler and servers."""
    from byteps_like.control.calls.scheduler import SchedulerServer
    from byteps_like.server.process import EmbeddedServer

    named = config.host or config.interface or not seat.host
    host = own_host(config) if named else seat.host
    text = "" if secret.has_secret(config) else secret.new()
    own = replace(config, role="scheduler", scheduler_state="")  # nobody could go on with it at this address
    scheduler = SchedulerServer(_with(own, join_address(host, 0), text))
    address = scheduler.start()
    services.add(scheduler.stop)
    servers = _with(replace(config, role="server", rank=-1, host=host), address, text)
    for _ in range(config.servers):
        server = EmbeddedServer(servers)
        server.start()
        services.add(server.stop)
    log.info("rank 0 runs the scheduler (%s) and %d servers of job %r", address, config.servers, config.job)
    return _Hosted(scheduler, address, text)


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
    log.warning(
        "rank 0 ends, and with it the scheduler and the servers, although other ranks have not left the job yet"
    )


def _with(config: Config, scheduler: str, text: str) -> Config:
    found = replace(config, scheduler=scheduler, explicit=config.explicit | {"scheduler", "num_servers"})
    found = replace(found, num_servers=config.servers)
    return replace(found, secret=text) if text else found


class Owning(Stands):
    """A worker together with what its process runs for the job; closing it closes both. See worker.api.Worker."""

    def __init__(self, worker: Worker, services: Services) -> None:
        self._worker, self._services = worker, services
        self.route, self.seal_key = worker.route, worker.seal_key

    @property
    def standing(self) -> Standing:
        """See worker.api.Worker."""
        found: Standing = self._worker.standing
        return found

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

    def keep(self, declared: Declared, spec: KeepSpec, initial: int = 0) -> KeptTensor:
        """See worker.keeping.Keeps."""
        if not isinstance(self._worker, Keeps):
            raise InvalidArgumentError(
                f"rank {self.standing.rank}: {declared.spec.name!r} needs servers that keep values, and this job has"
                " none: start some",
                rank=self.standing.rank,
                key=declared.spec.name,
            )
        return self._worker.keep(declared, spec, initial)

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

    def forget(self, declared: Declared) -> None:
        """See worker.api.Forgets."""
        if isinstance(self._worker, Forgets):
            self._worker.forget(declared)

    def meet(self, waiting: Sequence[Meeting], answer: Answer | None = None) -> None:
        """See worker.api.Meets."""
        if isinstance(self._worker, Meets):
            self._worker.meet(waiting, answer)

    def attend(self, who: Attends) -> None:
        """See worker.api.Meets."""
        if isinstance(self._worker, Meets):
            self._worker.attend(who)

    def changes(self) -> int:
        """See worker.api.HearsOfChanges."""
        return self._worker.changes() if isinstance(self._worker, HearsOfChanges) else 0

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
