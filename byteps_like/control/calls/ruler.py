"""A member's line to the scheduler that rules: at which of the addresses it is, and that none before it is heard."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, Protocol

import grpc.aio
from google.protobuf.message import Message

from byteps_like.config import Config
from byteps_like.control.calls.encryption import find_contradiction, is_distrust, open_channel_to
from byteps_like.control.calls.rpc import Callee, Caller, UnreachableError, channel_options
from byteps_like.control.v1 import scheduler_pb2 as pb
from byteps_like.errors import BytePSLikeError, PeerLostError, RefusedError

log = logging.getLogger(__name__)

SCHEDULER = pb.DESCRIPTOR.services_by_name["Scheduler"]
ADDRESSEE = "scheduler"
"""Whom the calls of this service address."""
SILENCE_SECONDS = 3.0
"""Without a word after which another one may rule: no rule outlives its lease (records.etcd.leadership)."""
_ASK_SECONDS = 1.0
"""For one that rules to say so."""


class DeposedError(UnreachableError):
    """A scheduler has answered whose term is over, as far as this member knows: it is not heard."""


class Line(Protocol):
    """A connection to one address, at which a scheduler may be."""

    address: str

    async def call(self, name: str, request: Message, timeout: float) -> Any:
        """See Caller.call."""

    def stream(self, name: str, request: Message, on_open: Callable[[], None]) -> AsyncIterator[Any]:
        """See Caller.stream."""

    async def close(self) -> None:
        """Cuts off what is under way."""


Connect = Callable[[str, Callable[[int], None]], Line]
"""To an address; the second is called with the term of each answer: what it raises, the call does."""


class _GrpcLine(Caller):
    def __init__(self, address: str, channel: grpc.aio.Channel, *caller: Any) -> None:
        super().__init__(channel, SCHEDULER, *caller)
        self.address, self._channel = address, channel

    async def close(self) -> None:
        await self._channel.close(None)


class Ruler:
    """Whichever scheduler of a job rules, as one caller knows it. For one event loop; connects with the first call.

    Where there is one address it is called there, and gRPC connects again by itself. Of several the first that answers
    is called until a call has failed. One that is silent is left for one that answers in a later term.
    """

    def __init__(
        self,
        config: Config,
        secret: bytes,
        on_clock: Callable[[int, int, int], None] | None = None,
        connect: Connect | None = None,
    ) -> None:
        """`on_clock` as for a Caller. `connect`: by other ways than gRPC."""
        self.term = 0
        """The highest that was heard of."""
        self._config, self._secret, self._on_clock = config, secret, on_clock
        self._connect = connect or self._by_grpc
        self._is_grpc = connect is None
        self._line: Line | None = None
        self.has_choice = len(config.schedulers) > 1
        """There are several addresses."""
        self._choosing = asyncio.Lock()
        self._heard = 0.0
        self.has_called = False
        self._is_closed = False

    async def call(self, name: str, request: Message, timeout: float) -> Any:
        """As a Caller's, which see; raises DeposedError, too, which is an UnreachableError."""
        line = await self._choose()
        try:
            return await line.call(name, request, timeout)
        except UnreachableError:
            await self._give_up(line)
            raise

    async def stream(self, name: str, request: Message, on_open: Callable[[], None]) -> AsyncIterator[Any]:
        """As a Caller's, which see; raises DeposedError, too, which is an UnreachableError."""
        line = await self._choose()
        try:
            async for message in line.stream(name, request, on_open):
                yield message
        except UnreachableError:
            await self._give_up(line)
            raise

    async def look_around(self, silence: float) -> None:
        """Where nothing was heard for `silence` seconds, goes over to a scheduler of a higher term, if there is one:
        calls that are under way are cut off. A single address may lead to another process by now."""
        line, term = self._line, self.term
        if line is None or not term or asyncio.get_running_loop().time() - self._heard < silence:
            return
        others = [address for address in self._config.schedulers if address != line.address] or [line.address]
        with suppress(UnreachableError, BytePSLikeError):
            found = await self._first_of(others)
            if self.term > term and self._line is line:
                log.warning("%s is silent; %s rules in term %d", line.address, found.address, self.term)
                found, self._line = line, found
            await found.close()

    async def why_apart(self, error: UnreachableError) -> str:
        """Why it is in vain to try again after `error`, if it is, as far as encryption is concerned; else ""."""
        if is_distrust(error.details):
            return f"its certificate is not made of the secret of job {self._config.job!r}"
        if not self._is_grpc:
            return ""
        found = [await find_contradiction(self._config, address) for address in self._config.schedulers]
        return next((why for why in found if why), "")

    async def close(self) -> None:
        """Cuts off what is under way. Idempotent."""
        self._is_closed = True
        line, self._line = self._line, None
        if line is not None:
            await line.close()

    async def _choose(self) -> Line:
        self.has_called = True
        async with self._choosing:
            if self._is_closed:
                raise UnreachableError("the connection was closed on this side")
            if self._line is None:
                addresses = self._config.schedulers
                self._line = await self._first_of(addresses) if self.has_choice else self._open(addresses[0])
            return self._line

    async def _give_up(self, line: Line) -> None:
        """The next call looks for another one."""
        if self.has_choice and self._line is line:
            self._line = None
            await line.close()

    async def _first_of(self, addresses: tuple[str, ...] | list[str]) -> Line:
        """The first that answers in no term that is over. Raises RefusedError if one refuses and none answers, before
        any was heard, else UnreachableError."""
        lines = [self._open(address) for address in addresses]
        asked = [asyncio.create_task(self._ask(line)) for line in lines]
        chosen: Line | None = None
        failures: list[BytePSLikeError | UnreachableError] = []
        try:
            for answer in asyncio.as_completed(asked):
                try:
                    chosen = await answer
                    return chosen
                except (UnreachableError, BytePSLikeError) as error:
                    failures.append(error)
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
            for line in lines:
                if line is not chosen:
                    await line.close()
        refusals = [failure for failure in failures if isinstance(failure, RefusedError)]
        if refusals and not self._heard:
            raise refusals[0]
        raise UnreachableError("; ".join(dict.fromkeys(str(failure) for failure in failures)), _details(failures))

    async def _ask(self, line: Line) -> Line:
        await line.call("Names", pb.NamesRequest(), _ASK_SECONDS)
        return line

    def _open(self, address: str) -> Line:
        return self._connect(address, self._hear)

    def _by_grpc(self, address: str, on_term: Callable[[int], None]) -> Line:
        channel = open_channel(self._config, self._secret, address)
        callee = scheduler_of(self._config, self._secret, address)
        return _GrpcLine(address, channel, callee, self._on_clock, on_term)

    def _hear(self, term: int) -> None:
        if term < self.term:
            raise DeposedError(f"a scheduler answers in term {term}, and {self.term} has begun: it rules no more")
        self.term, self._heard = term, asyncio.get_running_loop().time()


def open_channel(config: Config, secret: bytes, address: str = "") -> grpc.aio.Channel:
    """A connection to the scheduler, or to that at `address`; call it on the control loop."""
    options = channel_options(max(config.stall_timeout, 20.0))
    return open_channel_to(config, secret, address or config.scheduler, options)


def scheduler_of(config: Config, secret: bytes, address: str = "") -> Callee:
    """The scheduler, or that at `address`, for a Caller."""
    return Callee(config.job, secret, ADDRESSEE, f"scheduler {address or config.scheduler}")


async def one_call(config: Config, secret: bytes, name: str, request: Message, timeout: float) -> Any:
    """One call by somebody who is no member. Raises PeerLostError if nobody answers."""
    ruler = Ruler(config, secret)
    try:
        return await ruler.call(name, request, timeout)
    except UnreachableError as error:
        if why := await ruler.why_apart(error):
            raise RefusedError(f"the scheduler {config.scheduler} can't be asked: {why}", operation=name) from None
        raise PeerLostError(f"no scheduler at {config.scheduler}: {error}", peer="scheduler") from None
    finally:
        await ruler.close()


def _details(failures: list[BytePSLikeError | UnreachableError]) -> str:
    return "; ".join(failure.details for failure in failures if isinstance(failure, UnreachableError))
