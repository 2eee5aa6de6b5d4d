"""The scheduler of one job: as a process of its own, or embedded in another one."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

from byteps_like import log as logs
from byteps_like.config import Config, split_address
from byteps_like.control.calls.encryption import server_credentials
from byteps_like.control.calls.journal import Journal, RuleEndedError
from byteps_like.control.calls.listener import SPARE_CONNECTIONS, CallPort, Listener
from byteps_like.control.calls.loop import control_loop
from byteps_like.control.calls.proof import Verifier
from byteps_like.control.calls.rpc import ProvenService
from byteps_like.control.calls.ruler import ADDRESSEE
from byteps_like.control.calls.secret import load
from byteps_like.control.calls.service import SchedulerService
from byteps_like.control.hosts.address import join_address, listen_address
from byteps_like.control.hosts.routes import host_id
from byteps_like.control.members.forming import Terms
from byteps_like.control.members.membership import Membership, Patience
from byteps_like.control.records.opening import open_records
from byteps_like.control.records.records import Records
from byteps_like.control.types import INCARNATION_BYTES
from byteps_like.control.v1 import scheduler_pb2
from byteps_like.errors import BytePSLikeError, SystemCallError
from byteps_like.limits import raise_open_files

log = logging.getLogger(__name__)

SERVICE = scheduler_pb2.DESCRIPTOR.services_by_name["Scheduler"]


class SchedulerServer:
    """A scheduler on this process's control loop. Start and stop it from any thread but that loop's."""

    def __init__(self, config: Config, *, standby: bool = False) -> None:
        """`config.scheduler` is where to listen (port 0: any free one); empty: a free port of `config.host`. With
        `standby`, `start` blocks while another scheduler has the same state."""
        self._standby = standby
        self._records: Records | None = None
        self._config = config
        self._secret = load(config)
        self._listener: Listener | None = None
        self._service: SchedulerService | None = None
        self.address = ""

    def start(self) -> str:
        """Listens and returns the address host:port for members. Raises SystemCallError if the port is taken."""
        raise_open_files()
        if self._config.scheduler_state:
            self._records = open_records(self._config.scheduler_state, self._config.job, wait=self._standby)
        host, port = split_address(
            "scheduler", self._config.scheduler or join_address(self._config.host or "127.0.0.1", 0)
        )
        listen = listen_address(host, port)
        try:
            bound = control_loop().run(self._start(listen))
        except RuleEndedError as error:
            self.stop()
            raise SystemCallError(str(error)) from error
        except BytePSLikeError:
            self.stop()
            raise
        self.address = join_address(host, bound)
        log.info("scheduler of job %r on %s, pid %d", self._config.job, self.address, os.getpid())
        return self.address

    def stop(self) -> None:
        """Cuts all connections off. Idempotent."""
        if self._listener is not None:
            listener, self._listener = self._listener, None
            control_loop().run(self._end(listener))
        if self._records is not None:
            self._records.close()

    def wait(self, timeout: float | None = None) -> bool:
        """True when the job has ended, False after `timeout` seconds."""
        return control_loop().run(self._wait(timeout))

    def hear_of_deaths(self, source: int, at_end: Callable[[], None] = lambda: None) -> None:
        """Reads the descriptor `source` from now on, to its end, of which `at_end` tells: lines with the ids of
        processes of this host that have ended, in order or not."""
        control_loop().run(self._hear_of_deaths(source, at_end))

    async def _hear_of_deaths(self, source: int, at_end: Callable[[], None]) -> None:
        loop, unread, here = asyncio.get_running_loop(), bytearray(), host_id()
        os.set_blocking(source, False)

        def read() -> None:
            data = os.read(source, 4096)
            unread.extend(data)
            *lines, rest = bytes(unread).split(b"\n")
            unread[:] = rest
            if not data:
                loop.remove_reader(source)
                os.close(source)
                at_end()
            if self._service is not None:
                self._service.processes_ended(here, {int(line) for line in lines if line.isdigit()})

        loop.add_reader(source, read)

    @property
    def failed(self) -> bool:
        """True if the last epoch has failed, or this scheduler can't go on."""
        if self._service is None:
            return False
        epoch = self._service.membership.epoch
        return self._service.failure is not None or (epoch is not None and epoch.failure is not None)

    async def _start(self, listen: str) -> int:
        config = self._config
        self._service = take_up(config, self._records, os.urandom(INCARNATION_BYTES), standby=self._standby)
        membership = self._service.membership
        verifier = Verifier(config.job, self._secret, ADDRESSEE, os.urandom(INCARNATION_BYTES))
        listener = Listener(
            CallPort(listen, config.job, self._secret),
            max(config.stall_timeout, 20.0),
            _connections(membership.terms),
            server_credentials(config, self._secret),
        )
        term = 0 if self._records is None else self._records.term
        self._service.strangers = listener.strangers
        await listener.serve(ProvenService(SERVICE, self._service.methods(), verifier, term))
        self._listener = listener
        if self._records is not None:
            self._records.on_loss(partial(_end_rule, asyncio.get_running_loop(), self._service))
        return listener.port

    async def _end(self, listener: Listener) -> None:
        if self._service is not None:
            self._service.stop()
        await listener.stop()

    async def _wait(self, timeout: float | None) -> bool:
        assert self._service is not None
        try:
            async with asyncio.timeout(timeout):
                await self._service.ended.wait()
        except TimeoutError:
            return False
        return True


def take_up(config: Config, records: Records | None, incarnation: bytes, *, standby: bool = False) -> SchedulerService:
    """Begins anew, as a job of this `incarnation`, or where the scheduler before has ended. On the running loop."""
    journal = None if records is None else Journal(records)
    past = None if journal is None else journal.past()
    membership = Membership(config.job, incarnation if past is None else past[0], terms_of(config), patience_of(config))
    service = SchedulerService(membership, watch_rates=config.replan, journal=journal, absence=config.clock.absence)
    if past is not None:
        log.info("going on with job %r in term %d", config.job, records.term if records else 0)
        service.resume(*past[1:])
    elif standby and journal is not None and journal.has_ended:
        log.info("job %r has ended: there is nothing to go on with", config.job)
        service.ended.set()
    return service


def _end_rule(loop: asyncio.AbstractEventLoop, service: SchedulerService, why: BytePSLikeError) -> None:
    loop.call_soon_threadsafe(service.end_rule, why)


def _connections(terms: Terms) -> int:
    """How many may be open: twice what the members need, since a network that breaks leaves the old ones behind."""
    if terms.world_size and terms.num_servers >= 0 and "elastic" not in terms.settings:
        return 2 * (terms.world_size + terms.num_servers) + SPARE_CONNECTIONS
    return max(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2, SPARE_CONNECTIONS)


def terms_of(config: Config) -> Terms:
    """What this scheduler was told itself; a world size of 1 that nobody set leaves it to the members."""
    told = "world_size" in config.explicit or config.world_size > 1
    who = f"the scheduler (host {socket.gethostname()}, pid {os.getpid()})"
    settings = config.job_settings(explicit_only=True)
    return Terms(config.world_size if told else 0, config.num_servers, settings, who)


def patience_of(config: Config) -> Patience:
    """Deadlines by the configuration."""
    clock, named = config.clock, config.stall_warning
    if config.elastic or "failure_timeout" in config.explicit:
        named = clock.quiet
    return Patience(
        grace=config.peer_grace,
        first_watch=clock.return_to_scheduler,
        returning=clock.return_to_job,
        after_failure=config.join_timeout,
        prepare=clock.prepare,
        quiet=max(named, 3 * config.heartbeat_interval),
    )


def run_scheduler(
    config: Config,
    announce: Callable[[str], None] | None = None,
    *,
    standby: bool = False,
    deaths: int | None = None,
) -> int:
    """Runs the scheduler until the job has ended or SIGTERM or SIGINT comes; main thread only.

    `announce` gets the address host:port once it listens. From the descriptor `deaths` it reads which processes of this
    host have ended; while whoever says so is there, it stays after a job that has ended well, to refuse processes that
    come too late to be members. Returns the process's exit code: 0, or 1 after a failure.
    """
    logs.set_up("scheduler", config.log_level)
    server = SchedulerServer(config, standby=standby)
    address = server.start()
    events: SimpleQueue[str] = SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: events.put("told"))
    waiter = control_loop().submit(server._wait(None))
    waiter.add_done_callback(lambda _: events.put("ended"))
    if announce is not None:
        announce(address)
    if deaths is not None:
        server.hear_of_deaths(deaths, lambda: events.put("alone"))
    seen = set() if deaths is not None else {"alone"}
    while "told" not in seen and not ("ended" in seen and ("alone" in seen or server.failed)):
        seen.add(events.get())
    server.stop()
    return 1 if server.failed else 0
