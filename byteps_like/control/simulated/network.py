"""Connections between simulated processes and schedulers: messages come in order and once, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Any, Protocol

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from byteps_like.control.calls.rpc import NotAnsweredError, UnreachableError
from byteps_like.control.calls.ruler import SCHEDULER
from byteps_like.control.calls.wire import error_from_wire, error_to_wire
from byteps_like.errors import BytePSLikeError, DeadlineError

_SHORTEST, _LONGEST = 0.0001, 0.002
"""Seconds that a message takes where nothing is wrong."""
_KEEPALIVE = 20.0
"""After which a connection is given up whose other end is gone without a word."""


class Answers(Protocol):
    """A scheduler's process."""

    term: int
    methods: dict[str, Any]


class Connection:
    """Of one process with one scheduler's process."""

    def __init__(self, ends: Answers) -> None:
        self.scheduler = ends
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def cut(self, why: str) -> None:
        """It breaks, and both ends are told."""
        if not self.lost.done():
            self.lost.set_result(why)


class Uplink:
    """All that leads from one process to schedulers."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.connections: dict[Connection, None] = {}
        """In the order in which they were made."""
        self.stalled_until = 0.0
        """Nothing arrives before, either way."""
        self.closed_until = 0.0
        """No connection can be made before: a planted defect."""
        self.is_silent = False
        """Nothing arrives any more, and nobody is told."""

    async def travel(self, connection: Connection) -> None:
        """A message is on its way. Raises UnreachableError if the connection breaks meanwhile."""
        loop = asyncio.get_running_loop()
        late = max(self.stalled_until - loop.time(), 0.0)
        seconds = late + self._random.uniform(_SHORTEST, _LONGEST)
        if self.is_silent:
            seconds += _KEEPALIVE
        await _before(connection, asyncio.sleep(seconds))
        if self.is_silent:
            connection.cut("keepalive: the other end doesn't answer")
            raise UnreachableError("the other end doesn't answer")

    def reset(self, why: str = "reset") -> None:
        """All of its connections break."""
        for connection in self.connections:
            connection.cut(why)
        self.connections.clear()


class SimulatedNetwork:
    """Which scheduler's process is at which address."""

    def __init__(self) -> None:
        self.at: dict[str, Answers] = {}

    def line(self, uplink: Uplink, address: str, on_term: Callable[[int], None]) -> SimulatedLine:
        """From a process to whoever is at that address."""
        return SimulatedLine(self, uplink, address, on_term)


class SimulatedLine:
    """See calls.ruler.Line."""

    def __init__(self, network: SimulatedNetwork, uplink: Uplink, address: str, on_term: Callable[[int], None]) -> None:
        self.address = address
        self._network, self._uplink, self._on_term = network, uplink, on_term
        self._open: Connection | None = None

    async def call(self, name: str, request: Message, timeout: float) -> Any:
        """See Caller.call."""
        try:
            async with asyncio.timeout(timeout) as limit:
                return await self._call(name, request)
        except TimeoutError:
            if not limit.expired():
                raise  # a DeadlineError, which the scheduler has answered
            raise DeadlineError(f"the scheduler did not answer {name} within {timeout:.1f} s", operation=name) from None

    async def _call(self, name: str, request: Message) -> Any:
        connection = self._connection()
        method = SCHEDULER.methods_by_name[name]
        given = GetMessageClass(method.input_type).FromString(request.SerializeToString())
        await self._uplink.travel(connection)
        answer: Any = None
        failure: BytePSLikeError | None = None
        try:
            answer = await _before(connection, connection.scheduler.methods[name](given))
        except NotAnsweredError as error:
            raise UnreachableError(str(error)) from None
        except BytePSLikeError as error:
            failure = error_from_wire(error_to_wire(error))
        await self._uplink.travel(connection)
        self._on_term(connection.scheduler.term)
        if failure is not None:
            raise failure
        return GetMessageClass(method.output_type).FromString(answer.SerializeToString())

    async def stream(self, name: str, request: Message, on_open: Callable[[], None]) -> AsyncIterator[Any]:
        """See Caller.stream."""
        connection = self._connection()
        method = SCHEDULER.methods_by_name[name]
        given = GetMessageClass(method.input_type).FromString(request.SerializeToString())
        await self._uplink.travel(connection)
        messages: asyncio.Queue[bytes | BaseException | None] = asyncio.Queue()
        serving = asyncio.create_task(_serve(connection.scheduler.methods[name], given, messages))
        try:
            self._on_term(connection.scheduler.term)
            on_open()
            while (message := await _before(connection, messages.get())) is not None:
                if isinstance(message, BaseException):
                    raise message
                await self._uplink.travel(connection)
                self._on_term(connection.scheduler.term)
                yield GetMessageClass(method.output_type).FromString(message)
        finally:
            serving.cancel()

    async def close(self) -> None:
        """See Line."""
        if self._open is not None:
            self._open.cut("the connection was closed on this side")
            self._uplink.connections.pop(self._open, None)

    def _connection(self) -> Connection:
        ends = self._network.at.get(self.address)
        if ends is None or asyncio.get_running_loop().time() < self._uplink.closed_until:
            raise UnreachableError("connection refused")
        if self._open is None or self._open.lost.done() or self._open.scheduler is not ends:
            if self._open is not None:
                self._uplink.connections.pop(self._open, None)
            self._open = Connection(ends)
            self._uplink.connections[self._open] = None
        return self._open


async def _serve(behaviour: Any, request: Message, messages: asyncio.Queue[Any]) -> None:
    async def write(data: bytes) -> None:
        messages.put_nowait(data)

    try:
        await behaviour(request, write)
        messages.put_nowait(None)
    except NotAnsweredError as error:
        messages.put_nowait(UnreachableError(str(error)))
    except BytePSLikeError as error:
        messages.put_nowait(error_from_wire(error_to_wire(error)))


async def _before(connection: Connection, work: Any) -> Any:
    """What comes of `work`; it is cancelled, and UnreachableError raised, when the connection breaks first."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task, connection.lost], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise UnreachableError(connection.lost.result())
    finally:
        task.cancel()
