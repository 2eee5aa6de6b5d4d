"""The ServerAdmin service of one summation server: counters, what it keeps, draining; and the standard health service
beside it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from byteps_like.config import Config
from byteps_like.control.bounds import finite
from byteps_like.control.calls.encryption import open_channel_to, server_credentials
from byteps_like.control.calls.entrance import Entrance
from byteps_like.control.calls.listener import SPARE_CONNECTIONS, CallPort, Listener
from byteps_like.control.calls.loop import control_loop
from byteps_like.control.calls.proof import Verifier
from byteps_like.control.calls.rpc import Callee, Caller, ProvenService, UnreachableError, channel_options
from byteps_like.control.calls.secret import load
from byteps_like.control.hosts.address import join_address
from byteps_like.control.v1 import server_admin_pb2 as pb
from byteps_like.errors import PeerLostError
from byteps_like.server.figures import KeptFigures, figures_from_wire, figures_to_wire

SERVICE = pb.DESCRIPTOR.services_by_name["ServerAdmin"]
_DRAIN_LOOK = 0.05  # seconds between two looks at the number of open rounds; only while somebody drains

Counters = Callable[[], Mapping[str, float]]
Kept = Callable[[], Mapping[int, KeptFigures]]


class AdminServer:
    """Answers on the control loop. Start and stop it from any other thread."""

    def __init__(self, config: Config, counters: Counters, kept: Kept = dict) -> None:
        """Neither may block; "open_rounds" among the counters is what draining waits for."""
        self._config, self._counters, self._kept = config, counters, kept
        self._secret = load(config)
        self._started = time.monotonic()
        self._listener: Listener | None = None
        self.rank, self.epoch = -1, 0

    def start(self, host: str, port: int = 0, entrance: Entrance | None = None) -> str:
        """Listens and returns host:port: at any free port, or behind the entrance that has this one."""
        return control_loop().run(self._start(host, port, entrance))

    def strangers(self) -> Mapping[str, int]:
        """Counters of those who were kept out of this port."""
        return {} if self._listener is None else self._listener.strangers()

    def stop(self) -> None:
        """Cuts all connections off. Idempotent."""
        listener, self._listener = self._listener, None
        if listener is not None:
            control_loop().run(listener.stop())

    async def _start(self, host: str, port: int, entrance: Entrance | None) -> str:
        credentials = server_credentials(self._config, self._secret)
        listener = Listener(
            CallPort(join_address(host, port), self._config.job, self._secret, entrance),
            max(self._config.stall_timeout, 20.0),
            SPARE_CONNECTIONS,
            credentials,
        )
        address = join_address(host, listener.port)
        methods: Any = {"Stats": self._stats, "Kept": self._tell_kept, "Drain": self._drain}
        verifier = Verifier(self._config.job, self._secret, _name(address))
        await listener.serve(ProvenService(SERVICE, methods, verifier))
        self._listener = listener
        return address

    async def _stats(self, request: pb.StatsRequest) -> pb.StatsReply:
        del request
        uptime = time.monotonic() - self._started
        counters = {name: float(value) for name, value in self._counters().items()}
        return pb.StatsReply(rank=max(self.rank, 0), epoch=self.epoch, uptime_s=uptime, counters=counters)

    async def _tell_kept(self, request: pb.KeptRequest) -> pb.KeptReply:
        del request
        return pb.KeptReply(tensors=[figures_to_wire(tensor, one) for tensor, one in self._kept().items()])

    async def _drain(self, request: pb.DrainRequest) -> pb.DrainReply:
        deadline = time.monotonic() + finite("timeout_s", request.timeout_s)
        if self._listener is not None:
            self._listener.health.stop_serving()
        open_rounds = self._open_rounds()
        while open_rounds and time.monotonic() < deadline:
            await asyncio.sleep(_DRAIN_LOOK)
            open_rounds = self._open_rounds()
        return pb.DrainReply(drained=open_rounds == 0, open_rounds=open_rounds)

    def _open_rounds(self) -> int:
        return int(self._counters().get("open_rounds", 0))


def server_stats(config: Config, admin: str, timeout: float = 5.0) -> pb.StatsReply:
    """Counters of the server whose `Member.admin` is `admin`. Raises RefusedError, DeadlineError or PeerLostError."""
    reply: pb.StatsReply = control_loop().run(_ask(config, admin, "Stats", pb.StatsRequest(), timeout))
    return reply


def server_kept(config: Config, admin: str, timeout: float = 5.0) -> dict[int, KeptFigures]:
    """What that server has counted of the tensors that it keeps, by tensor id. Raises as `server_stats` does."""
    reply: pb.KeptReply = control_loop().run(_ask(config, admin, "Kept", pb.KeptRequest(), timeout))
    return {one.tensor_id: figures_from_wire(one) for one in reply.tensors}


def drain_server(config: Config, admin: str, timeout: float = 60.0) -> bool:
    """Tells a server to drain and waits; True when no round was left unfinished. Raises as `server_stats` does."""
    reply: pb.DrainReply = control_loop().run(
        _ask(config, admin, "Drain", pb.DrainRequest(timeout_s=timeout), timeout + 5.0)
    )
    return reply.drained


def _name(admin: str) -> str:
    """Whom calls to this server address: it knows itself by the address that it tells the scheduler."""
    return f"server {admin}"


async def _ask(config: Config, admin: str, name: str, request: Any, timeout: float) -> Any:
    secret = load(config)
    async with open_channel_to(config, secret, admin, channel_options(20.0)) as channel:
        caller = Caller(channel, SERVICE, Callee(config.job, secret, _name(admin), _name(admin)))
        try:
            return await caller.call(name, request, timeout)
        except UnreachableError as error:
            raise PeerLostError(f"no server at {admin}: {error}", peer=f"server {admin}") from None
