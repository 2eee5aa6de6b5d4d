"""The scheduler as the launcher starts it: its address is told, and nobody else's, before it listens there."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

pytest.importorskip("grpc")

from byteps_like.config import Config
from byteps_like.control.calls.scheduler import SchedulerServer
from byteps_like.errors import SystemCallError
from byteps_like.launch import service
from byteps_like.launch.obituary import Obituary


def test_the_scheduler_listens_at_the_address_that_was_told_before(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    told, bound = [], []

    def run(config: Config, deaths: int) -> int:
        assert deaths == 99
        told.append(os.read(read, 100).decode())
        server = SchedulerServer(config)
        bound.append(server.start())
        server.stop()
        return 7

    monkeypatch.setattr("byteps_like.control.calls.scheduler.run_scheduler", run)
    monkeypatch.setenv("BYTEPS_LIKE_SCHEDULER", "127.0.0.1:0")
    monkeypatch.setenv("BYTEPS_LIKE_SECRET", "s" * 64)
    assert service.main("scheduler", str(write), "99") == 7
    assert told == [f"{bound[0]}\n"]
    os.close(read)


NEEDS_IPV6 = pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="a kernel without IPv6")


@pytest.mark.parametrize("host", ["127.0.0.1", pytest.param("[::1]", marks=NEEDS_IPV6)])
def test_a_reserved_port_is_nobody_elses(host: str) -> None:
    family = socket.AF_INET6 if "[" in host else socket.AF_INET
    with service._reserved(f"{host}:0") as address, socket.socket(family) as other:
        assert address.startswith(f"{host}:")
        port = int(address.rpartition(":")[2])
        with pytest.raises(OSError, match="in use"):
            other.bind((host.strip("[]"), port))


def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(SystemCallError, match=f"can't listen on {address}: "), service._reserved(address):
            pass


def test_the_next_scheduler_hears_of_those_before_it() -> None:
    obituary = Obituary()
    obituary.ended(5)  # there is no scheduler yet
    first = obituary.open()
    obituary.ended(7)
    assert os.read(first, 100) == b"5\n7\n"
    os.close(first)
    obituary.ended(9)  # its pipe is broken
    obituary.began(5)  # the number is somebody else's now
    second = obituary.open()
    assert os.read(second, 100) == b"7\n9\n"
    obituary.close()
    obituary.close()
    obituary.ended(11)
    assert os.read(second, 100) == b""
    os.close(second)


def test_a_scheduler_that_reads_nothing_blocks_nobody() -> None:
    obituary = Obituary()
    source = obituary.open()
    for pid in range(100_000):
        obituary.ended(pid)
    os.close(source)
    obituary.close()
