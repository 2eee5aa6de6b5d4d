"""Which scheduler a member hears, of several on real ports of one process that say their terms."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc.aio
import pytest

from byteps_like.cli.scheduler import listen_on
from byteps_like.config import Config
from byteps_like.control.calls.loop import control_loop
from byteps_like.control.calls.proof import Keys, Verifier
from byteps_like.control.calls.rpc import ProvenService, UnreachableError
from byteps_like.control.calls.ruler import ADDRESSEE, SCHEDULER, DeposedError, Ruler, one_call
from byteps_like.control.hosts.address import own_host
from byteps_like.control.v1 import scheduler_pb2 as pb
from byteps_like.errors import ConfigError, DeadlineError, InvalidArgumentError, PeerLostError, RefusedError

SECRET = b"a secret that only the tests know"
T = TypeVar("T")


class Answering:
    """A scheduler that says under which term it answers, and is silent unless it is `awake`."""

    def __init__(self, term: int, secret: bytes = SECRET) -> None:
        self.term, self.secret, self.address, self.calls = term, secret, "", 0
        self.awake = asyncio.Event()
        self.awake.set()

    async def start(self, address: str = "127.0.0.1:0") -> Answering:
        self._server: Any = grpc.aio.server()
        verifier = Verifier("job", self.secret, ADDRESSEE)
        methods = {"Names": self.names, "Watch": self.watch, "Status": self.fail}
        self._server.add_generic_rpc_handlers((ProvenService(SCHEDULER, methods, verifier, self.term),))
        self.address = f"127.0.0.1:{self._server.add_insecure_port(address)}"
        await self._server.start()
        return self

    async def stop(self) -> None:
        await self._server.stop(None)

    async def names(self, request: pb.NamesRequest) -> pb.NamesReply:
        self.calls += 1
        await self.awake.wait()
        return pb.NamesReply(names={0: f"term {self.term}"})

    async def fail(self, request: pb.StatusRequest) -> pb.StatusReply:
        raise InvalidArgumentError(f"term {self.term}")

    async def watch(self, request: pb.WatchRequest, write: Callable[[bytes], Awaitable[None]]) -> None:
        while True:
            await write(pb.WatchMessage().SerializeToString())
            await asyncio.sleep(0.02)


def a_ruler(*addresses: str) -> Ruler:
    return Ruler(Config(job="job", scheduler=",".join(addresses), stall_timeout=60.0), SECRET)


async def heard(ruler: Ruler, timeout: float = 5.0) -> str:
    reply: pb.NamesReply = await ruler.call("Names", pb.NamesRequest(), timeout)
    return reply.names[0]


def nobody() -> str:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        return f"127.0.0.1:{closed.getsockname()[1]}"


def run(test: Callable[[], Awaitable[T]]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(30):
            return await test()

    return control_loop().run(bounded())


def test_the_one_that_answers_is_found_and_the_next_after_it() -> None:
    async def test() -> None:
        first, silent = await Answering(1).start(), nobody()
        ruler = a_ruler(silent, first.address)
        assert await heard(ruler) == "term 1"
        await first.stop()
        for _ in range(2):
            with pytest.raises(UnreachableError):
                await heard(ruler)
        second = await Answering(2).start(silent)
        assert await heard(ruler) == "term 2"
        assert ruler.term == 2
        await ruler.close()
        with pytest.raises(UnreachableError, match="closed on this side"):
            await heard(ruler)
        await second.stop()

    run(test)


@pytest.mark.parametrize("what", ["answer", "error", "stream"])
def test_nothing_of_a_term_that_is_over_is_heard(what: str) -> None:
    """At one address, as where a name leads to another process each time."""

    async def test() -> None:
        old = await Answering(3).start()
        ruler = a_ruler(old.address)
        ruler.term = 4
        with pytest.raises(DeposedError, match="answers in term 3, and 4 has begun: it rules no more"):
            if what == "answer":
                await heard(ruler)
            elif what == "error":
                await ruler.call("Status", pb.StatusRequest(), 5.0)
            else:
                async for _ in ruler.stream("Watch", pb.WatchRequest(), lambda: None):
                    break
        await ruler.close()
        await old.stop()

    run(test)


def test_a_silent_one_is_left_for_one_of_a_later_term_and_its_late_answers_are_not_heard() -> None:
    async def test() -> None:
        old, new = await Answering(3).start(), Answering(4)
        silent = nobody()
        ruler = a_ruler(old.address, silent)
        assert await heard(ruler) == "term 3"
        old.awake.clear()
        late = asyncio.create_task(heard(ruler))
        await asyncio.sleep(0.2)
        await ruler.look_around(0.1)  # there is no other
        assert not late.done()
        await new.start(silent)
        await ruler.look_around(60.0)  # it is not silent for so long
        assert not late.done()
        await ruler.look_around(0.1)
        with pytest.raises(UnreachableError):
            await late
        assert await heard(ruler) == "term 4"
        old.awake.set()
        await new.stop()
        with pytest.raises(UnreachableError):
            await heard(ruler)
        with pytest.raises(UnreachableError, match=r"answers in term 3, and 4 has begun"):
            await heard(ruler)
        await ruler.close()
        await old.stop()

    run(test)


def test_a_single_address_may_lead_to_another_one() -> None:
    """As that of a service in front of several hosts."""

    async def test() -> None:
        old, new = await Answering(3).start(), await Answering(4).start()
        ways = [old.address, new.address]

        async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            host, _, port = ways.pop(0).partition(":")
            there = await asyncio.open_connection(host, int(port))
            await asyncio.gather(carry(reader, there[1]), carry(there[0], writer))

        front = await asyncio.start_server(lead, "127.0.0.1", 0)
        ruler = a_ruler(f"127.0.0.1:{front.sockets[0].getsockname()[1]}")
        assert await heard(ruler) == "term 3"
        old.awake.clear()
        late = asyncio.create_task(heard(ruler))
        await asyncio.sleep(0.1)
        await ruler.look_around(0.05)
        with pytest.raises(UnreachableError):
            await late
        assert await heard(ruler) == "term 4"
        await ruler.close()
        front.close()
        for one in (old, new):
            await one.stop()

    run(test)


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while some := await reader.read(1 << 16):
        writer.write(some)
    writer.close()


def test_a_silent_one_is_not_left_for_one_of_no_later_term() -> None:
    async def test() -> None:
        one, other = await Answering(3).start(), await Answering(3).start()
        ruler = a_ruler(one.address, other.address)
        await heard(ruler)
        before = one.calls, other.calls
        await asyncio.sleep(0.1)
        await ruler.look_around(0.05)
        calls = await heard(ruler), one.calls - before[0], other.calls - before[1]
        assert sorted(calls[1:]) == [1, 1], "the other was asked, and the same one is called"
        await ruler.close()
        await one.stop()
        await other.stop()

    run(test)


def test_a_stranger_is_refused_at_first_and_passed_over_later() -> None:
    async def test() -> None:
        ours, stranger = await Answering(1).start(), await Answering(9, b"x" * 32).start()
        ruler = a_ruler(stranger.address, ours.address)
        assert await heard(ruler) == "term 1"
        await ours.stop()
        for _ in range(2):
            with pytest.raises(UnreachableError):
                await heard(ruler)
        await ruler.close()
        with pytest.raises(RefusedError, match="wrong secret"):
            await heard(a_ruler(nobody(), stranger.address))
        await stranger.stop()

    run(test)


def test_who_is_no_member_asks_the_one_that_rules() -> None:
    async def test() -> None:
        one = await Answering(1).start()
        config = Config(job="job", scheduler=f"{nobody()}, {one.address}")
        reply: pb.NamesReply = await one_call(config, SECRET, "Names", pb.NamesRequest(), 5.0)
        assert reply.names[0] == "term 1"
        one.awake.clear()
        began = time.monotonic()
        with pytest.raises((PeerLostError, DeadlineError)):
            await one_call(config, SECRET, "Names", pb.NamesRequest(), 1.0)
        assert time.monotonic() - began < 5
        await one.stop()

    run(test)


def test_a_term_is_under_the_proof() -> None:
    keys = Keys.of(SECRET)
    proof = keys.answered(b"request", "answer", b"body", 7)
    assert keys.check_answer(proof, b"request", "answer", b"body", 7)
    assert not keys.check_answer(proof, b"request", "answer", b"body", 8)
    assert not keys.check_answer(proof, b"request", "answer", b"body")


def test_of_several_addresses_a_scheduler_listens_at_the_port_that_all_have() -> None:
    assert listen_on("a:7077, b:7077", None, None) == "0.0.0.0:7077"
    assert listen_on("a:7077,b:7078", "b", 7078) == "b:7078"
    assert listen_on("a:7077,b:7078", None, 7078) == "0.0.0.0:7078"
    with pytest.raises(ConfigError, match="has several ports: say --port"):
        listen_on("a:7077,b:7078", None, None)


def test_of_several_addresses_one_that_there_is_no_way_to_is_passed_over() -> None:
    assert own_host(Config(scheduler="no-such-host.invalid:1,127.0.0.1:2")) == "127.0.0.1"
    with pytest.raises(ConfigError, match="can't be reached from here"):
        own_host(Config(scheduler="no-such-host.invalid:1,no-such-host.invalid:2"))
