"""What strangers cost whoever answers calls: bodies nobody asked for, connections that say nothing, health streams."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import grpc.aio
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from byteps_like.config import Config
from byteps_like.control.calls.client import query_status
from byteps_like.control.calls.listener import WATCHERS
from byteps_like.server.admin import server_stats
from tests.multiprocess.control.processes import SECRET, Cluster

MIB = 1 << 20
GROWTH = 32 * MIB
DESCRIPTORS = 320
BODY = 60 * MIB

ADMIN = """
import sys
from byteps_like.config import Config
from byteps_like.server.admin import AdminServer
server = AdminServer(Config.from_env(job="test", secret=sys.argv[1]), lambda: {"open_rounds": 0.0})
print(server.start("127.0.0.1"), flush=True)
sys.stdin.read()
"""


class Called:
    """A scheduler, or a server's admin service, in a process of its own."""

    def __init__(self, address: str, pid: int, service: str, ask: Any) -> None:
        self.address, self.service, self.ask = address, service, ask
        self._process = psutil.Process(pid)
        self.ask()
        self._before, self._open_before = self._process.memory_info().rss, self._process.num_fds()
        self.grown, self.descriptors = 0, 0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Notes the most memory and descriptors beyond those of before, while something goes on."""
        done = threading.Event()

        def look() -> None:
            while not done.wait(0.01):
                self.grown = max(self.grown, self._process.memory_info().rss - self._before)
                self.descriptors = max(self.descriptors, self._process.num_fds() - self._open_before)

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


@pytest.fixture(params=["scheduler", "server"])
def called(request: pytest.FixtureRequest) -> Iterator[Called]:
    if request.param == "scheduler":
        cluster = Cluster(world_size=2, num_servers=0)
        config = Config(job="test", secret=SECRET, scheduler=cluster.address)
        try:
            yield Called(
                cluster.address, cluster.scheduler.process.pid, "Scheduler/Declare", lambda: query_status(config)
            )
        finally:
            cluster.end()
        return
    process = subprocess.Popen(
        [sys.executable, "-c", ADMIN, SECRET], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdin is not None
    try:
        address = process.stdout.readline().strip()
        config = Config(job="test", secret=SECRET)
        yield Called(address, process.pid, "ServerAdmin/Stats", lambda: server_stats(config, address))
    finally:
        process.kill()
        process.wait(10)
        process.stdin.close()
        process.stdout.close()


def test_bodies_without_proof_cost_next_to_nothing(called: Called) -> None:
    """A dozen strangers with four calls of 60 MiB each, at once."""

    async def stranger() -> list[Any]:
        options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(called.address, options=options) as channel:
            call = channel.unary_unary(f"/byteps_like.v1.{called.service}")
            return await asyncio.gather(*(call(bytes(BODY), timeout=60) for _ in range(4)), return_exceptions=True)

    async def flood() -> list[Any]:
        return [error for errors in await asyncio.gather(*(stranger() for _ in range(12))) for error in errors]

    with called.watched():
        errors = asyncio.run(flood())
    assert {error.code() for error in errors} == {grpc.StatusCode.UNAUTHENTICATED}
    assert called.grown <= GROWTH, f"{called.grown / MIB:.0f} MiB"
    called.ask()


def test_connections_that_say_nothing_are_few_and_keep_nobody_out(called: Called) -> None:
    """A thousand of them, half with the preface of HTTP/2; members' calls get through beside them."""
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
    connections = []
    with called.watched():
        try:
            for number in range(1000):
                connection = socket.create_connection(called.address.split(":"), timeout=5)
                connections.append(connection)
                if number % 2:
                    connection.sendall(preface)
        except OSError:
            pass
        called.ask()
    for connection in connections:
        connection.close()
    assert called.descriptors <= DESCRIPTORS
    assert called.grown <= GROWTH, f"{called.grown / MIB:.0f} MiB"


def test_health_needs_no_proof_but_streams_of_it_are_few(called: Called) -> None:
    async def watch_all() -> list[Any]:
        options = [("grpc.use_local_subchannel_pool", 1)]
        channels = [grpc.aio.insecure_channel(called.address, options=options) for _ in range(10)]
        request = health_pb2.HealthCheckRequest(service="x" * 100)
        calls = [health_pb2_grpc.HealthStub(channel).Watch(request, timeout=60) for channel in channels * 10]
        first = await asyncio.gather(*(call.read() for call in calls), return_exceptions=True)
        checks = [health_pb2_grpc.HealthStub(channel).Check(request, timeout=10) for channel in channels]
        answers = await asyncio.gather(*checks)
        assert {answer.status for answer in answers} == {health_pb2.HealthCheckResponse.SERVING}
        for call in calls:
            call.cancel()
        for channel in channels:
            await channel.close()
        return first

    with called.watched():
        first = asyncio.run(watch_all())
    refused = [error for error in first if isinstance(error, grpc.RpcError)]
    assert {error.code() for error in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert len(first) - len(refused) == WATCHERS
    assert called.grown <= GROWTH, f"{called.grown / MIB:.0f} MiB"
    called.ask()
