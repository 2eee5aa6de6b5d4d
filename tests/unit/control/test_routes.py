"""Where processes listen and which way they take: one table, the same in the native core and in the documentation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from byteps_like.control.hosts.routes import TRANSPORTS, listen_urls, usable_urls
from byteps_like.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]
OFFERED = ("shm://x", "rdma://10.0.0.3:1", "tcp://10.0.0.3:2", "inproc://x")
LISTENING = ["shm://x", "rdma://h:0", "tcp://h:7", "inproc://x"]


def test_the_table_is_that_of_the_native_core_and_of_the_protocol() -> None:
    schemes = [row.scheme for row in TRANSPORTS]
    native = (ROOT / "csrc" / "transport" / "transports.cc").read_text().partition("kTransports[] = {")[2]
    encrypted = [row.encrypted for row in TRANSPORTS if row.encrypted]
    found = set(re.findall(r'^    \{"([\w+]+)", ', native, flags=re.MULTILINE)) - {"sim"}  # of simulations alone
    assert found == {*schemes, *encrypted}, "a row in both"
    page = (ROOT / "docs" / "reference" / "protocol.md").read_text().partition("\n## Addresses\n")[2].split("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \| `\1://", page, flags=re.MULTILINE) == schemes, "the best one first"


@pytest.mark.parametrize(
    ("transport", "urls"),
    [("auto", LISTENING), ("shm", LISTENING), ("chaos://auto?seed=1", LISTENING), ("tcp", LISTENING[2:])],
)
def test_a_process_listens_by_all_transports_or_by_tcp_alone(transport: str, urls: list[str]) -> None:
    assert listen_urls(transport, "h", 7, "x", "" if transport == "tcp" else "rdma://h:0") == urls


def test_with_encryption_tcp_is_encrypted_and_nothing_in_the_clear_is_taken_for_it() -> None:
    assert listen_urls("auto", "h", 7, "x", encrypts=True) == ["shm://x", "tls+tcp://h:7", "inproc://x"]
    offered = ["shm://x", "tcp://10.0.0.3:2", "tls+tcp://10.0.0.3:3"]
    assert usable_urls("auto", offered, False, "rank 1", encrypts=True) == ["tls+tcp://10.0.0.3:3"]
    assert usable_urls("tcp", offered, True, "rank 1") == ["tcp://10.0.0.3:2"]
    chaos = usable_urls("chaos://tcp?seed=1", offered, False, "rank 1", encrypts=True)
    assert chaos == ["chaos+tls+tcp://10.0.0.3:3?seed=1"]
    with pytest.raises(ConfigError, match=r"with tls=on leaves no way to rank 1, which offers tcp://10.0.0.3:2"):
        usable_urls("auto", offered[1:2], False, "rank 1", encrypts=True)


def test_an_ipv6_address_is_in_brackets() -> None:
    assert listen_urls("tcp", "fe80::1", 7, "x") == ["tcp://[fe80::1]:7", "inproc://x"]


@pytest.mark.parametrize(
    ("transport", "near", "usable"),
    [
        ("auto", True, ["shm://x", "rdma://10.0.0.3:1", "tcp://10.0.0.3:2"]),
        ("auto", False, ["rdma://10.0.0.3:1", "tcp://10.0.0.3:2"]),
        ("shm", True, ["shm://x"]),
        ("rdma", False, ["rdma://10.0.0.3:1"]),
        ("chaos+tcp://?seed=1", True, ["chaos+tcp://10.0.0.3:2?seed=1"]),
    ],
)
def test_peers_take_what_both_ends_can_use(transport: str, near: bool, usable: list[str]) -> None:
    assert usable_urls(transport, OFFERED, near, "rank 1") == usable


def test_no_way_and_no_such_transport_are_named() -> None:
    with pytest.raises(
        ConfigError, match=r"transport='shm' with tls=off leaves no way to rank 1, which offers shm://x"
    ):
        usable_urls("shm", ["shm://x"], False, "rank 1")
    with pytest.raises(ConfigError, match=r"transport='inproc' is none of auto, shm, rdma, tcp, chaos://"):
        usable_urls("inproc", OFFERED, True, "rank 1")
