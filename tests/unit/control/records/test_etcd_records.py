"""Records in a real etcd, beside what any place does: how the rule is lost, and what is said of an etcd that won't."""

from __future__ import annotations

import signal
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from byteps_like.control.records.etcd import stored_log
from byteps_like.control.records.etcd.calls import EtcdCalls
from byteps_like.control.records.etcd.location import Location
from byteps_like.control.records.opening import open_records
from byteps_like.control.v1 import etcd_rpc_pb2 as rpc
from byteps_like.errors import CorruptError, RefusedError, SystemCallError
from tests.real_etcd import RealEtcd

pytestmark = pytest.mark.processes


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[RealEtcd]:
    made = RealEtcd(tmp_path)
    yield made
    made.kill()


def txn(etcd: RealEtcd, *operations: rpc.RequestOp) -> rpc.TxnResponse:
    api = EtcdCalls(Location.parse(f"etcd://{etcd.endpoint}"))
    try:
        return api.txn(rpc.TxnRequest(success=operations), 5.0)
    finally:
        api.close()


def put(key: str, value: bytes) -> rpc.RequestOp:
    return rpc.RequestOp(request_put=rpc.PutRequest(key=key.encode(), value=value))


def removal(key: str) -> rpc.RequestOp:
    return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=key.encode()))


def test_who_has_lost_the_rule_stores_nothing_and_names_who_has_it(etcd: RealEtcd) -> None:
    state = f"etcd://{etcd.endpoint}/x"
    records = open_records(state, "job")
    records.commit({"a": b"1"})
    txn(etcd, removal("x/job/leader"))
    other = open_records(state, "job")
    with pytest.raises(RefusedError, match=rf"another scheduler rules by now \(host .*\): term {other.term}"):
        records.commit({"a": b"2"})
    with pytest.raises(RefusedError, match="another scheduler rules"):
        records.check()
    assert other.load() == {"a": b"1"}
    records.close()
    other.check()
    other.close()


def test_a_rule_outlives_an_etcd_that_is_back_in_time(etcd: RealEtcd) -> None:
    records = open_records(f"etcd://{etcd.endpoint}", "job")
    records.commit({"a": b"1"})
    etcd.kill()
    threading.Timer(0.5, etcd.start).start()
    records.commit({"a": b"2"})
    time.sleep(4)
    records.commit({"a": b"3"})
    assert records.load() == {"a": b"3"}
    records.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_the_rule_ends_with_an_etcd_that_is_away(etcd: RealEtcd, number: signal.Signals) -> None:
    records = open_records(f"etcd://{etcd.endpoint}", "job")
    lost = threading.Event()
    records.on_loss(lambda why: lost.set())
    etcd.signal(number)
    began = time.monotonic()
    with pytest.raises(SystemCallError, match=f"can't reach the etcd at {etcd.endpoint} within"):
        records.commit({"a": b"1"})
    assert time.monotonic() - began < 5
    assert lost.wait(5)
    records.close()
    assert time.monotonic() - began < 8


def test_an_etcd_that_is_not_there_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(SystemCallError, match=f"can't reach the etcd at 127.0.0.1:{port} within 3.0 s"):
        open_records(f"etcd://127.0.0.1:{port}", "job")


def test_another_of_its_members_is_asked(etcd: RealEtcd) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.create_server(("127.0.0.1", 0)) as closed:
        ports = silent.getsockname()[1], closed.getsockname()[1]
        closed.close()
        state = f"etcd://127.0.0.1:{ports[1]},127.0.0.1:{ports[0]},{etcd.endpoint}"
        records = open_records(state, "job")
        records.commit({"a": b"1"})
        assert records.load() == {"a": b"1"}
        records.close()


def test_an_etcd_of_smaller_requests_is_told_what_to_do(etcd: RealEtcd) -> None:
    etcd.kill()
    etcd.start("--max-request-bytes=100000")
    records = open_records(f"etcd://{etcd.endpoint}", "job")
    with pytest.raises(SystemCallError, match="request is too large; start etcd with --max-request-bytes"):
        records.commit({"a": bytes(200_000)})
    records.close()


def test_a_full_etcd_is_told_what_to_do(etcd: RealEtcd) -> None:
    etcd.kill()
    etcd.start("--quota-backend-bytes=1000000")
    records = open_records(f"etcd://{etcd.endpoint}", "job")
    with pytest.raises(SystemCallError, match="database space exceeded; compact and defragment it"):
        for _ in range(20):
            records.commit({"a": bytes(500_000)})
    records.close()


def test_pieces_that_are_missing_are_an_error(etcd: RealEtcd) -> None:
    records = open_records(f"etcd://{etcd.endpoint}/x", "job")
    records.commit({"a": b"1"})
    txn(etcd, removal(f"x/job/log/{0:016d}"))
    with pytest.raises(CorruptError, match="piece 0 of 1 is missing"):
        records.load()
    records.close()


def test_records_that_somebody_else_changes_end_the_rule(etcd: RealEtcd) -> None:
    records = open_records(f"etcd://{etcd.endpoint}/x", "job")
    records.commit({"a": b"1"})
    txn(etcd, put("x/job/head", b""))
    with pytest.raises(RefusedError, match="were changed, and not by a scheduler"):
        records.commit({"a": b"2"})
    records.close()


def test_long_logs_are_read_by_pages(etcd: RealEtcd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_log, "_PAGE", 3)
    records = open_records(f"etcd://{etcd.endpoint}", "job")
    for number in range(10):
        records.commit({str(number): b"x"})
    assert records.load() == {str(number): b"x" for number in range(10)}
    records.close()


def test_a_user_gets_in_with_a_password_and_nobody_without(etcd: RealEtcd, tmp_path: Path) -> None:
    for what in ("user add root:1234", "user grant-role root root", "auth enable"):
        command = ["etcdctl", f"--endpoints={etcd.endpoint}", *what.split()]
        try:
            subprocess.run(command, env={"ETCDCTL_API": "3", "PATH": "/usr/bin"}, check=True, capture_output=True)
        except FileNotFoundError:
            pytest.skip("there is no etcdctl: scripts/setup.sh test installs Debian's etcd-client")
    for name, content in {"right": "1234\n", "wrong": "12345"}.items():
        (tmp_path / name).write_text(content)
    state = f"etcd://root@{etcd.endpoint}/{uuid.uuid4().hex}?password_file={tmp_path}"
    with pytest.raises(SystemCallError, match=r"authentication failed.*; check user and password_file"):
        open_records(f"{state}/wrong", "job")
    with pytest.raises(SystemCallError, match="user name is empty; name a user"):
        open_records(f"etcd://{etcd.endpoint}", "job")
    records = open_records(f"{state}/right", "job")
    records.commit({"a": b"1"})
    records.close()


def test_a_stale_token_is_renewed() -> None:
    api = EtcdCalls(Location.parse("etcd://127.0.0.1:1"))
    api._token = "old"

    class Stale(Exception):
        def code(self) -> grpc.StatusCode:
            return grpc.StatusCode.UNAUTHENTICATED

        def details(self) -> str:
            return "etcdserver: invalid auth token"

    api._look_into(Stale())
    assert api._token == ""
    with pytest.raises(SystemCallError, match="refused: etcdserver: invalid auth token"):
        api._look_into(Stale())
    api.close()


def test_something_else_that_listens_there_is_named() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with pytest.raises(SystemCallError, match=f"what listens at 127.0.0.1:{port} is no etcd of version 3"):
        open_records(f"etcd://127.0.0.1:{port}", "job")
    server.stop(0)
