"""Whole jobs with tls=on over TCP: they compute what NumPy does, nobody reads along, and faults are survived."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from byteps_like.config import Config
from byteps_like.control.calls.client import ControlClient, query_status
from byteps_like.control.hosts.member import own_member
from byteps_like.control.types import MemberRole
from byteps_like.errors import BytePSLikeError, RefusedError
from byteps_like.server.admin import server_stats
from tests.multiprocess.real_world import Pool, job

RANKS = 3
SIZES = (0, 1, 7, 4096, 300_001)
DTYPES = ("float32", "float64", "int64")
CHAOS = "chaos://tcp?seed={seed}&drop=0.0005&corrupt=0.0005&delay_ms=0.5"
TELL_TALE = b"known plaintext, which nobody on the wire may read along with us"
NAME = "a.telling.name.of.a.tensor"


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    made = Pool(RANKS)
    yield made
    made.close()


def contribution(rank: int, size: int, dtype: str) -> np.ndarray[Any, Any]:
    return (np.arange(size) % 97 + rank).astype(dtype)


def compute(bps: Any, rank: int, size: int, among_workers: bool = True) -> set[str]:
    """Sums, gathered values and broadcasts, all checked here. Returns the transports of this worker's links, with
    servers."""
    import torch

    from byteps_like.torch.job.runtime import current

    for dtype in DTYPES:
        for length in SIZES:
            own = [contribution(one, length, dtype) for one in range(size)]
            given = torch.from_numpy(own[rank])
            summed = bps.push_pull(given.clone(), average=False, name=f"sum.{dtype}.{length}")
            np.testing.assert_array_equal(summed.numpy(), sum(own))
            if among_workers:
                gathered = bps.allgather(given, name=f"gather.{dtype}.{length}")
                np.testing.assert_array_equal(gathered.numpy(), np.concatenate(own))
            sent = bps.broadcast(given.clone(), 1, name=f"broadcast.{dtype}.{length}")
            np.testing.assert_array_equal(sent.numpy(), own[1])
    worker: Any = current().worker
    return set(worker.links()) if hasattr(worker, "links") else set()


def keep(bps: Any, rank: int, size: int, among_workers: bool = True) -> set[str]:
    """A store whose values servers keep, with an update there that adds the ranks' mean; checked here."""
    start = np.arange(5000, dtype=np.float32)
    store = bps.Store("weights", {"w": start}, update="add")
    for turn in range(3):
        store.push("w", np.full_like(start, rank + 1)).wait(30)
        value = np.empty_like(start)
        bps.barrier()
        store.pull("w", value).wait(30)
        np.testing.assert_array_equal(value, start + (turn + 1) * (size + 1) / 2)
        bps.barrier()
    return compute(bps, rank, size, among_workers)


def tell(bps: Any, rank: int, size: int) -> None:
    """Moves known bytes, under a known name, over servers and among workers."""
    import torch

    del rank, size
    block = torch.frombuffer(bytearray(TELL_TALE * 512), dtype=torch.uint8)
    for turn in range(10):
        bps.broadcast(block.clone(), 0, name=NAME)
        bps.allgather(block, name=f"{NAME}.{turn}")


@pytest.mark.parametrize("servers", [0, 2])
def test_a_job_computes_as_in_the_clear(pool: Pool, servers: int) -> None:
    with job(RANKS, servers, tls="on", transport="tcp") as cluster:
        for links in pool.run(cluster, keep if servers else compute, together=True):
            assert links == ({"tls+tcp"} if servers else set())


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_broken_links_to_servers_resume_under_faults_of_the_wire(pool: Pool, seed: int) -> None:
    with job(RANKS, 2, tls="on", transport=CHAOS.format(seed=seed), partition_bytes=65536) as cluster:
        pool.run(cluster, keep, False, together=True)


def test_links_within_a_host_stay_in_shared_memory(pool: Pool) -> None:
    with job(RANKS, 1, tls="on") as cluster:
        assert pool.run(cluster, compute, together=True) == [{"shm"}] * RANKS


@contextmanager
def listening_in() -> Iterator[bytearray]:
    """All that goes over loopback while the block runs."""
    heard = bytearray()
    over = threading.Event()
    try:
        tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003))
    except PermissionError:
        pytest.skip("only root may listen in")
    with tap:
        tap.bind(("lo", 0))
        tap.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
        tap.settimeout(0.1)

        def listen() -> None:
            while not over.is_set():
                try:
                    heard.extend(tap.recv(1 << 17))
                except TimeoutError:
                    continue

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield heard
        finally:
            over.set()
            thread.join()


@pytest.mark.parametrize("tls", ["off", "on"])
def test_who_listens_in_reads_nothing(pool: Pool, tls: str) -> None:
    with listening_in() as heard, job(RANKS, 1, tls=tls, transport="tcp") as cluster:
        pool.run(cluster, tell, together=True)
    assert len(heard) > 20 * RANKS * len(TELL_TALE)
    assert (TELL_TALE in heard) == (tls == "off")
    assert (NAME.encode() in heard) == (tls == "off")
    assert (cluster.config().job.encode() in heard) == (tls == "off")


def join(config: Config) -> BytePSLikeError | None:
    """What becomes of one worker that joins by itself."""
    client = ControlClient(config)
    try:
        client.join(own_member(config, MemberRole.WORKER, urls=("tcp://127.0.0.1:1",)))
    except BytePSLikeError as error:
        return error
    finally:
        client.leave()
    return None


@pytest.mark.parametrize("own", ["off", "on"])
def test_who_differs_is_refused_with_both_values(own: str) -> None:
    theirs = "off" if own == "on" else "on"
    with job(2, 0, tls=theirs) as cluster:
        began = time.monotonic()
        error = join(cluster.config(rank=0, tls=own))
        assert time.monotonic() - began < 2
        assert isinstance(error, RefusedError)
        assert f"tls={own} here, but tls={theirs} at {cluster.config().scheduler}" in str(error)
        with pytest.raises(RefusedError, match=f"tls={own} here, but tls={theirs}"):
            query_status(cluster.config(tls=own))


def test_the_others_hear_who_was_refused() -> None:
    with job(2, 0, tls="on") as cluster:
        found: list[BytePSLikeError | None] = []
        waiting = threading.Thread(target=lambda: found.append(join(cluster.config(rank=0))))
        waiting.start()
        while not query_status(cluster.config()).members:
            time.sleep(0.01)
        join(cluster.config(rank=1, tls="off"))
        waiting.join(20)
        assert isinstance(found[0], RefusedError)
        assert "worker 1" in str(found[0])
        assert "tls=off here, but tls=on" in str(found[0])


def test_another_secret_is_refused_at_once() -> None:
    with job(2, 0, tls="on") as cluster:
        began = time.monotonic()
        error = join(cluster.config(rank=0, secret="another" * 8))
        assert time.monotonic() - began < 2
        assert isinstance(error, RefusedError)
        assert "not made of the secret" in str(error)


def test_servers_answer_operators_in_tls(pool: Pool) -> None:
    with job(RANKS, 1, tls="on", transport="tcp") as cluster:
        pool.run(cluster, ask_server, cluster.config(), together=True)


def ask_server(bps: Any, rank: int, size: int, config: Config) -> None:
    """What `status` does."""
    del bps, rank, size
    server = next(one.member for one in query_status(config).members if one.member.role == "server")
    assert server_stats(config, server.admin).uptime_s > 0


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority's file `ca.pem`, and `cert.pem` with `key.pem` for 127.0.0.1, by the openssl program."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no program openssl")
    folder = tmp_path_factory.mktemp("certificates")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1")
    new = "openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
    for command in (
        f"{new} -x509 -keyout ca.key -out ca.pem -subj /CN=authority -days 2",
        f"{new} -keyout key.pem -out request -subj /CN=member",
        "openssl x509 -req -in request -CA ca.pem -CAkey ca.key -CAcreateserial -out cert.pem -days 2 -extfile names",
    ):
        subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    return folder


def test_certificates_of_the_user_are_verified_both_ways(pool: Pool, certificates: Path) -> None:
    files = {f"tls_{name}": str(certificates / f"{name}.pem") for name in ("cert", "key", "ca")}
    with job(RANKS, 1, tls="on", transport="tcp", **files) as cluster:
        assert isinstance(
            join(cluster.config(rank=0, tls_cert="", tls_key="", tls_ca="", join_timeout=2)), BytePSLikeError
        )
        pool.run(cluster, compute, together=True)
