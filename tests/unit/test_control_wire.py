"""Proofs on the wire: what a stranger, a replayer, and a false scheduler get to hear."""

import socket
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from byteps_like.config import Config
from byteps_like.control.client import ControlClient, query_status
from byteps_like.control.loop import control_loop
from byteps_like.control.proof import Keys, Verifier
from byteps_like.control.rpc import ERROR, JOB, PROOF, service_handler
from byteps_like.control.scheduler import SERVICE, SchedulerServer
from byteps_like.control.types import INCARNATION_BYTES, Member, MemberRole
from byteps_like.control.v1 import scheduler_pb2 as pb
from byteps_like.control.v1 import types_pb2
from byteps_like.errors import Code, PeerLostError, RefusedError, SystemCallError

SECRET = "a secret that only the tests know"
Call = Any


@pytest.fixture
def scheduler() -> Iterator[SchedulerServer]:
    server = SchedulerServer(Config(job="wire", secret=SECRET, scheduler="127.0.0.1:0"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def status(scheduler: SchedulerServer) -> Iterator[Call]:
    with grpc.insecure_channel(scheduler.address) as channel:
        yield channel.unary_unary(f"/{SERVICE.full_name}/Status")


def refusal(call: Call, body: bytes, metadata: list[tuple[str, bytes]]) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        call(body, metadata=metadata, timeout=10)
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.UNAUTHENTICATED
    return str(error.details())


def test_a_call_without_proof_or_sent_twice_or_changed(status: Call) -> None:
    assert "no proof" in refusal(status, b"", [(JOB, b"wire")])
    proof, nonce = Keys.of(SECRET.encode()).sign("wire", "Status", b"")
    metadata = [(JOB, b"wire"), (PROOF, proof)]
    assert "wrong secret" in refusal(status, b"\x08\x01", metadata)
    answer, call = status.with_call(b"", metadata=metadata, timeout=10)
    trailer = dict(call.trailing_metadata())
    assert Keys.of(SECRET.encode()).check_answer(trailer[PROOF], "Status", nonce, answer)
    assert "replay: this call was made before" in refusal(status, b"", metadata)


def test_a_proven_but_malformed_request(scheduler: SchedulerServer) -> None:
    body = b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"
    proof, _ = Keys.of(SECRET.encode()).sign("wire", "Join", body)
    with grpc.insecure_channel(scheduler.address) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(f"/{SERVICE.full_name}/Join")(body, metadata=[(JOB, b"wire"), (PROOF, proof)], timeout=10)
    error: Any = caught.value
    typed = types_pb2.Error.FromString(dict(error.trailing_metadata())[ERROR])
    assert (typed.code, typed.text.split(":")[0]) == (Code.INVALID, "malformed JoinRequest")


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


class Gullible(Verifier):
    """Lets everybody in, and does not know the secret."""

    def check(self, job: str, method: str, proof: bytes | None, body: bytes) -> bytes:
        assert proof is not None
        return proof[9:25]


def test_a_false_scheduler_is_refused_by_its_members() -> None:
    async def answer(request: Any) -> pb.JoinReply:
        return pb.JoinReply()

    async def start() -> tuple[Any, int]:
        server = grpc.aio.server()
        methods = {method.name: answer for method in SERVICE.methods}
        handler = service_handler(SERVICE, methods, Gullible("wire", b"another secret, not the job's"))
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
