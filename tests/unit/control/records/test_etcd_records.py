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
from byteps_like.control.records.etcd.leadership import Leadership
from byteps_like.control.records.etcd.location import Location
from byteps_like.control.records.opening import open_records
from byteps_like.control.records.records import Records
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
    # The commit's deadline and the lease are equally long: either may end first, and says so.
    unreachable = f"can't reach the etcd at {etcd.endpoint} within"
    with pytest.raises((SystemCallError, RefusedError), match=f"{unreachable}|is over after"):
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


def test_a_rule_outlives_a_member_of_the_etcd(tmp_path: Path) -> None:
    cluster = RealEtcd(tmp_path, members=3)
    try:
        state = f"etcd://{','.join(cluster.endpoints)}"
        records = open_records(state, "job")
        for number in range(3):
            cluster.kill(number)
            for turn in range(20):
                records.commit({"a": f"{number} {turn}".encode()})
            cluster.start()
        assert records.load() == {"a": b"2 19"}
        records.close()
    finally:
        cluster.kill()


def test_a_standby_waits_though_the_etcd_has_dropped_old_revisions(
    etcd: RealEtcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = f"etcd://{etcd.endpoint}"
    records = open_records(state, "job")
    for number in range(20):
        records.commit({"a": str(number).encode()})
    etcd.control("compaction", str(records.term + 10))
    begun: list[Leadership] = []
    begin = Leadership.begin
    monkeypatch.setattr(Leadership, "begin", lambda one: begun.append(one) or begin(one))
    found: list[Records] = []
    standby = threading.Thread(target=lambda: found.append(open_records(state, "job", wait=True)))
    standby.start()
    deadline = time.monotonic() + 20
    while not begun:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(1)
    assert len(begun) == 1, "it waits for a word of the etcd"
    records.close()
    standby.join(10)
    assert len(begun) == 2
    assert found[0].load() == {"a": b"19"}
    found[0].close()


def certificates(folder: Path) -> None:
    """An authority, and certificates for 127.0.0.1 and for a client, by OpenSSL."""

    def openssl(*command: str) -> None:
        subprocess.run(["openssl", *command], cwd=folder, check=True, capture_output=True, timeout=20)

    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl("req", "-x509", *new, "-keyout", "ca.key", "-out", "ca", "-days", "1", "-subj", "/CN=authority")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth")
    for name in ("server", "client"):
        openssl("req", *new, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", "ca", "-CAkey", "ca.key", "-CAcreateserial", "-days", "1",
            "-extfile", "names", "-out", name,
        )  # fmt: skip


def test_an_encrypted_etcd_knows_its_clients_and_they_know_it(tmp_path: Path) -> None:
    certificates(tmp_path)
    files = {"cert-file": "server", "key-file": "server.key", "trusted-ca-file": "ca"}
    flags = [f"--{flag}={tmp_path / name}" for flag, name in files.items()]
    etcd = RealEtcd(tmp_path / "data", "--client-cert-auth", *flags, scheme="https")
    try:
        trust, own = f"ca={tmp_path}/ca", f"cert={tmp_path}/client&key={tmp_path}/client.key"
        records = open_records(f"etcds://{etcd.endpoint}?{trust}&{own}", "job")
        records.commit({"a": b"1"})
        assert records.load() == {"a": b"1"}
        records.close()
        for incomplete in (f"etcds://{etcd.endpoint}?{trust}", f"etcds://{etcd.endpoint}", f"etcd://{etcd.endpoint}"):
            with pytest.raises(SystemCallError, match="can't reach the etcd"):
                open_records(incomplete, "job")
    finally:
        etcd.kill()


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
        etcd.control(*what.split())
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
