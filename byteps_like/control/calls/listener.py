"""A port for calls with proof, with gRPC's standard health service beside them, and what strangers may cost there."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2

from byteps_like.config import split_address
from byteps_like.control.calls.entrance import UNPROVEN, Entrance, SocketFolder, open_entrance, port_of, strangers
from byteps_like.control.calls.rpc import ProvenService, server_options
from byteps_like.errors import BytePSLikeError, SystemCallError

SPARE_CONNECTIONS = 64
"""Beyond those of members: operators' calls, health checks, and strangers, who are cut off after a few seconds."""

WATCHERS = 16
"""Streams of Watch at a time; each keeps a connection."""

_STOP_GRACE = 0.2
_SERVICE = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name


@dataclass(frozen=True)
class CallPort:
    """Where calls of a job come in."""

    address: str
    job: str
    secret: bytes = field(repr=False)
    entrance: Entrance | None = None
    """That of another port, which is at `address` already; None: one is opened there."""


class Listener:
    """A port with the standard health service, whose checks need no proof: they tell only that somebody is there.

    gRPC answers on a Unix socket behind an entrance. Without the native core there is none, and gRPC has the port: all
    works, but whoever opens many connections keeps members out.
    """

    def __init__(
        self, place: CallPort, silence: float, connections: int, credentials: grpc.ServerCredentials | None = None
    ) -> None:
        """A peer that is silent for `silence` seconds is cut off. With `credentials` calls are encrypted. Raises
        SystemCallError if the address is taken."""
        self._server = grpc.aio.server(options=server_options(silence, connections + UNPROVEN))
        self._credentials = credentials
        self.health = Health()
        self._server.add_generic_rpc_handlers((self.health,))
        self._service: ProvenService | None = None
        self._folder, self._entrance = SocketFolder(), place.entrance
        self._own: Any = None
        try:
            self.port = self._listen(place)
        except BaseException:
            self._folder.close()
            raise

    def _listen(self, place: CallPort) -> int:
        calls = self._folder.path("calls")
        self._bind(f"unix:{calls}")
        if self._entrance is not None:
            self._entrance.pass_on("calls", calls)
            return split_address("address", place.address)[1]
        try:
            self._own = open_entrance(place.address, place.job, place.secret, calls)
        except BytePSLikeError as error:
            raise SystemCallError(f"can't listen on {place.address}: {error}") from error
        if self._own is None:
            return self._bind(place.address)
        self._entrance = self._own
        return port_of(self._own.url)

    def _bind(self, address: str) -> int:
        try:
            if self._credentials is None:
                return int(self._server.add_insecure_port(address))
            return int(self._server.add_secure_port(address, self._credentials))
        except RuntimeError as error:
            raise SystemCallError(f"can't listen on {address}: {error}") from error

    async def serve(self, service: ProvenService) -> None:
        """Answers from now on."""
        self._service = service
        service.stand_behind(self._entrance)
        self._server.add_generic_rpc_handlers((service,))
        await self._server.start()

    def strangers(self) -> Mapping[str, int]:
        """Counters of those who were kept out: calls, and connections if the entrance is its own."""
        refused = 0 if self._service is None else self._service.refused
        return strangers({} if self._own is None else self._own.entrance(), refused)

    async def stop(self) -> None:
        """Cuts all connections off."""
        if self._own is not None:
            self._own.stop_listening()
        await self._server.stop(_STOP_GRACE)
        if self._own is not None:
            self._own.close()
        self._folder.close()


class Health(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Tells whether the process serves, whichever service is asked about. Lives on one event loop.

    It needs no proof, so it reads nothing of a request and holds little.
    """

    def __init__(self) -> None:
        self._serving = True
        self._stopped = asyncio.Event()
        self._watchers = 0

    def stop_serving(self) -> None:
        """From now on the process is reported not to serve."""
        self._serving = False
        self._stopped.set()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """As streams of requests, whatever the method: grpc reads nothing of those by itself."""
        handlers = {"Check": self._check, "Watch": self._watch}
        service, _, method = handler_call_details.method.lstrip("/").partition("/")
        if service != _SERVICE or method not in handlers:
            return None
        return grpc.stream_stream_rpc_method_handler(handlers[method])

    def _status(self) -> bytes:
        response = health_pb2.HealthCheckResponse
        status = response.SERVING if self._serving else response.NOT_SERVING
        encoded: bytes = response(status=status).SerializeToString()
        return encoded

    async def _check(self, requests: Any, context: Any) -> None:
        del requests
        await context.write(self._status())

    async def _watch(self, requests: Any, context: Any) -> None:
        del requests
        if self._watchers >= WATCHERS:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{WATCHERS} watch already; use Check")
        self._watchers += 1
        try:
            await context.write(self._status())
            if self._serving:
                await self._stopped.wait()
                await context.write(self._status())
            await asyncio.Event().wait()  # nothing will change any more; the watcher, or the server's end, ends it
        finally:
            self._watchers -= 1
