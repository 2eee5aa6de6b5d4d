"""Proofs on the wire: what a stranger, a replayer, and a false scheduler get to hear."""

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from byteps_like.config import Config
from byteps_like.control.calls.client import ControlClient, query_status
from byteps_like.control.calls.loop import control_loop
from byteps_like.control.calls.proof import Admitted, CallerSession, Keys, Purpose, Verifier
from byteps_like.control.calls.rpc import (
    ADDRESSEE,
    CHALLENGE,
    CLOCK,
    ERROR,
    JOB,
    PROOF,
    Caller,
    ProvenService,
    Refusals,
)
from byteps_like.control.calls.scheduler import SERVICE, SchedulerServer
from byteps_like.control.types import INCARNATION_BYTES, Member, MemberRole
from byteps_like.control.v1 import scheduler_pb2 as pb
from byteps_like.control.v1 import server_admin_pb2 as admin_pb
from byteps_like.control.v1 import types_pb2
from byteps_like.errors import Code, PeerLostError, RefusedError, SystemCallError
from byteps_like.server.admin import SERVICE as ADMIN
from byteps_like.server.admin import AdminServer

SECRET = "a secret that only the tests know"
Call = Any


@pytest.fixture
def scheduler() -> Iterator[SchedulerServer]:
    server = SchedulerServer(Config(job="wire", secret=SECRET, scheduler="127.0.0.1:0"))
    server.start()
    yield server
    server.stop()


class Wire:
    """Raw calls of a caller that knows the secret: `sign` gives metadata, `send` what came of a call."""

    def __init__(self, channel: grpc.Channel, method: str) -> None:
        self.purpose = Purpose("wire", "scheduler", SERVICE.full_name, method)
        self.session = CallerSession(Keys.of(SECRET.encode()))
        self.call: Call = channel.unary_unary(f"/{SERVICE.full_name}/{method}")

    def sign(self, body: bytes) -> list[tuple[str, bytes]]:
        proof = self.session.sign(self.purpose, body)
        return [(JOB, b"wire"), (ADDRESSEE, b"scheduler"), (PROOF, proof)]

    def introduce(self) -> None:
        """The first call, which is answered by a challenge."""
        metadata = self.sign(b"")
        with pytest.raises(grpc.RpcError) as caught:
            self.call(b"", metadata=metadata, timeout=10)
        error: Any = caught.value
        assert self.session.take(dict(error.trailing_metadata())[CHALLENGE], dict(metadata)[PROOF])


@pytest.fixture
def status(scheduler: SchedulerServer) -> Iterator[Wire]:
    with grpc.insecure_channel(scheduler.address) as channel:
        wire = Wire(channel, "Status")
        wire.introduce()
        yield wire


def refusal(call: Call, body: bytes, metadata: list[tuple[str, bytes]]) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        call(body, metadata=metadata, timeout=10)
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.UNAUTHENTICATED
    return str(error.details())


def test_a_call_without_proof_or_sent_twice_or_changed(status: Wire) -> None:
    assert "no proof" in refusal(status.call, b"", [(JOB, b"wire"), (ADDRESSEE, b"scheduler")])
    with pytest.raises(grpc.RpcError) as caught:
        status.call(b"\x08\x01", metadata=status.sign(b""), timeout=10)
    error: Any = caught.value
    typed = types_pb2.Error.FromString(dict(error.trailing_metadata())[ERROR])
    assert (typed.code, typed.text.split(":")[0]) == (Code.REFUSED, "the request was changed on its way")
    metadata = status.sign(b"")
    answer, call = status.call.with_call(b"", metadata=metadata, timeout=10)
    trailer = dict(call.trailing_metadata())
    assert Keys.of(SECRET.encode()).check_answer(trailer[PROOF], dict(metadata)[PROOF], "answer", answer)
    assert "replay: this call was made before" in refusal(status.call, b"", metadata)


def test_a_proven_but_malformed_request(scheduler: SchedulerServer) -> None:
    body = b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"
    with grpc.insecure_channel(scheduler.address) as channel:
        wire = Wire(channel, "Join")
        wire.introduce()
        with pytest.raises(grpc.RpcError) as caught:
            wire.call(body, metadata=wire.sign(body), timeout=10)
    error: Any = caught.value
    typed = types_pb2.Error.FromString(dict(error.trailing_metadata())[ERROR])
    assert (typed.code, typed.text.split(":")[0]) == (Code.INVALID, "malformed JoinRequest")


def test_a_request_is_refused_before_its_body_has_come(scheduler: SchedulerServer) -> None:
    """A stranger that sends the header of a call and never anything of its body gets its answer all the same."""
    with grpc.insecure_channel(scheduler.address) as channel:
        call = channel.stream_unary(f"/{SERVICE.full_name}/Declare")
        never = threading.Event()

        def body() -> Iterator[bytes]:
            never.wait(30)
            yield b""

        started = time.monotonic()
        with pytest.raises(grpc.RpcError) as caught:
            call(body(), metadata=[(JOB, b"wire")], timeout=20)
        never.set()
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.UNAUTHENTICATED
    assert time.monotonic() - started < 10


def test_a_drain_recorded_on_its_way_is_good_at_no_other_server_and_at_no_later_start() -> None:
    drained = []

    class Recording(AdminServer):
        async def _drain(self, request: admin_pb.DrainRequest) -> admin_pb.DrainReply:
            drained.append(self)
            return admin_pb.DrainReply(drained=True)

    config = Config(job="wire", secret=SECRET)
    servers = [Recording(config, dict) for _ in range(2)]
    addresses = [server.start("127.0.0.1") for server in servers]
    purpose = Purpose("wire", f"server {addresses[0]}", ADMIN.full_name, "Drain")
    session = CallerSession(Keys.of(SECRET.encode()))

    def send(address: str, metadata: list[tuple[str, bytes]]) -> Any:
        with grpc.insecure_channel(address) as channel:
            try:
                return channel.unary_unary(f"/{ADMIN.full_name}/Drain")(b"", metadata=metadata, timeout=10)
            except grpc.RpcError as error:
                return error

    def sign() -> list[tuple[str, bytes]]:
        to = purpose.addressee.encode()
        return [(JOB, b"wire"), (ADDRESSEE, to), (PROOF, session.sign(purpose, b""))]

    try:
        first = sign()
        challenge = dict(send(addresses[0], first).trailing_metadata())[CHALLENGE]
        assert session.take(challenge, dict(first)[PROOF])
        recorded = sign()
        assert isinstance(send(addresses[0], recorded), bytes)
        assert drained == servers[:1]
        for metadata in (recorded, [recorded[0], (ADDRESSEE, f"server {addresses[1]}".encode()), recorded[2]]):
            for address in addresses:
                assert send(address, metadata).code() is grpc.StatusCode.UNAUTHENTICATED
        assert drained == servers[:1]
    finally:
        for server in servers:
            server.stop()


def test_a_clock_that_is_stepped_cuts_nobody_off(scheduler: SchedulerServer, monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config(job="wire", secret=SECRET, scheduler=scheduler.address, world_size=1, num_servers=0)
    client = ControlClient(config)
    actual, sign = time.time, Caller._sign

    def with_another_clock(self: Caller, *arguments: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda: actual() + step)
            return sign(self, *arguments)

    step = 0.0
    monkeypatch.setattr(Caller, "_sign", with_another_clock)
    try:
        client.join(Member(MemberRole.WORKER, 0, "boot", "here", 1))
        for step in (1e6, -1e6):
            client.barrier(f"after a step of {step}")
            assert query_status(config).state == "running"
    finally:
        client.leave()


def test_a_clock_in_a_trailer_that_nobody_signed_is_read_with_care() -> None:
    told: list[int] = []
    caller: Any = object.__new__(Caller)
    caller._on_clock = lambda sent, theirs, received: told.append(theirs)
    for text in ("9" * 5000, "-1", "x", "", "\u0661", "1234"):
        caller._tell_clock(1, text, 2)
    assert told == [1234]
    assert CLOCK == "byteps-like-clock"


def test_refusals_are_logged_once_per_host_and_second(caplog: pytest.LogCaptureFixture) -> None:
    now = [10.0]
    refusals = Refusals(lambda: now[0])
    for port in range(1000):
        refusals.log(f"ipv4:10.0.0.1:{port}", "Join: wrong secret")
    refusals.log("ipv4:10.0.0.2:1", "Join: wrong secret")
    assert len(caplog.messages) == 2
    now[0] += 1.0
    refusals.log("ipv4:10.0.0.1:7", "Join: wrong secret")
    assert "ipv4:10.0.0.1 (999 more of its calls" in caplog.messages[2]
    for host in range(10_000):
        refusals.log(f"ipv4:10.1.{host >> 8}.{host & 255}:1", "Join: wrong secret")
    assert len(refusals._hosts) <= Refusals.MOST_HOSTS


def test_each_start_of_a_scheduler_is_an_incarnation_of_its_own() -> None:
    seen = set()
    for _ in range(2):
        server = SchedulerServer(Config(job="wire", secret=SECRET, scheduler="127.0.0.1:0"))
        config = Config(job="wire", secret=SECRET, scheduler=server.start(), world_size=1, num_servers=0)
        client = ControlClient(config)
        try:
            world = client.join(Member(MemberRole.WORKER, 0, "boot", "here", 1))
            assert len(world.incarnation) == INCARNATION_BYTES
            assert (client.member.number, world.workers[0].number) == (1, 1)
            seen.add(world.incarnation)
        finally:
            client.leave()
            server.stop()
    assert len(seen) == 2


class Believed(Admitted):
    """Any body will do."""

    def check_body(self, body: bytes) -> None:
        """Nothing is wrong."""


class Gullible(Verifier):
    """Lets everybody in, and does not know the secret."""

    def admit(self, purpose: Purpose, proof: bytes | None) -> Admitted:
        assert proof is not None
        return Believed(proof, 0, b"")


def test_a_false_scheduler_is_refused_by_its_members() -> None:
    async def answer(request: Any) -> pb.JoinReply:
        return pb.JoinReply()

    async def start() -> tuple[Any, int]:
        server = grpc.aio.server()
        methods = {method.name: answer for method in SERVICE.methods}
        verifier = Gullible("wire", b"another secret, not the job's", "scheduler")
        handler = ProvenService(SERVICE, methods, verifier)
        server.add_generic_rpc_handlers((handler,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return server, port

    server, port = control_loop().run(start())
    client = ControlClient(Config(job="wire", secret=SECRET, scheduler=f"127.0.0.1:{port}", num_servers=0))
    try:
        with pytest.raises(RefusedError, match="did not prove that it knows the secret of job 'wire'"):
            client.join(Member(MemberRole.WORKER, 0, "boot", "here", 1))
    finally:
        control_loop().run(server.stop(None))


def test_health_needs_no_proof(scheduler: SchedulerServer) -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with grpc.insecure_channel(scheduler.address) as channel:
        reply = health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(service=SERVICE.full_name), timeout=10
        )
    assert reply.status == health_pb2.HealthCheckResponse.SERVING


def test_ports_that_are_taken_or_empty(scheduler: SchedulerServer) -> None:
    with pytest.raises(SystemCallError, match=f"can't listen on {scheduler.address}"):
        SchedulerServer(Config(job="second", secret=SECRET, scheduler=scheduler.address)).start()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{probe.getsockname()[1]}"
    with pytest.raises(PeerLostError, match=f"no scheduler at {nobody}"):
        query_status(Config(secret=SECRET, scheduler=nobody))
