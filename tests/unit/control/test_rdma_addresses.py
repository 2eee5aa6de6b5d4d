"""Which RDMA addresses a process listens on, advertises and calls, on hosts that are made up."""

from __future__ import annotations

import logging

import pytest

from byteps_like.config import Config
from byteps_like.control.hosts.rdma import RdmaAddress, RdmaHost, peer_urls, rdma_listen_url
from byteps_like.control.hosts.routes import listen_urls
from byteps_like.errors import ConfigError

TWO_CARDS = RdmaHost(
    "",
    (
        RdmaAddress("10.9.0.2", "mlx5_0"),
        RdmaAddress("[fd00::2]", "mlx5_1"),
        RdmaAddress("10.0.0.2", "mlx5_1"),
    ),
)
NONE = RdmaHost("there is no RDMA device")
OFFERED = ("shm://x", "rdma://10.0.0.3:4711?qps=2", "tcp://10.0.0.3:4712")


def _never() -> RdmaHost:
    raise AssertionError("the host was looked at")


def _calls(config: Config, host: RdmaHost, *, near: bool = False) -> list[str]:
    return peer_urls(config, OFFERED, near, "server 3 on beta", lambda: host)


@pytest.mark.parametrize(
    ("settings", "host", "expected"),
    [
        ({}, "10.0.0.2", "rdma://10.0.0.2:0"),
        ({}, "10.5.0.5", "rdma://10.9.0.2:0"),
        ({}, "fd00::9", "rdma://[fd00::2]:0"),
        ({"rdma_devices": "mlx5_1"}, "10.5.0.5", "rdma://10.0.0.2:0?device=mlx5_1"),
        (
            {"rdma_devices": "mlx5_1, mlx5_0", "rdma_gid_index": 3},
            "10.0.0.2",
            "rdma://10.0.0.2,10.9.0.2:0?device=mlx5_1,mlx5_0&gid=3",
        ),
        ({"transport": "chaos://rdma?seed=1"}, "127.0.0.1", "rdma://10.9.0.2:0"),
        ({"rdma_devices": "mlx5_7"}, "10.0.0.2", ""),
    ],
)
def test_listens_on_the_card_that_peers_call_or_on_those_named(settings: dict, host: str, expected: str) -> None:
    assert rdma_listen_url(Config(**settings), host, lambda: TWO_CARDS) == expected


def test_rdma_is_advertised_between_shared_memory_and_tcp() -> None:
    urls = listen_urls("auto", "10.0.0.2", 0, "x", "rdma://10.0.0.2:0")
    assert urls == ["shm://x", "rdma://10.0.0.2:0", "tcp://10.0.0.2:0", "inproc://x"]


@pytest.mark.parametrize(
    ("settings", "host"),
    [
        ({"rdma": "off"}, "10.0.0.2"),
        ({"transport": "tcp"}, "10.0.0.2"),
        ({"transport": "shm"}, "10.0.0.2"),
        ({}, "::1"),
    ],
)
def test_a_host_is_not_looked_at_where_rdma_is_not_wished(settings: dict, host: str) -> None:
    assert rdma_listen_url(Config(**settings), host, _never) == ""


def test_without_an_offer_a_host_is_not_looked_at() -> None:
    assert peer_urls(Config(), ("shm://x", "tcp://10.0.0.3:1"), True, "rank 1", _never) == [
        "shm://x", "tcp://10.0.0.3:1",
    ]  # fmt: skip


def test_calls_say_which_own_devices_to_use() -> None:
    assert _calls(Config(), TWO_CARDS) == list(OFFERED[1:])
    assert _calls(Config(rdma_devices="mlx5_0", rdma_gid_index=0), TWO_CARDS, near=True) == [
        "shm://x", "rdma://10.0.0.3:4711?qps=2&device=mlx5_0&gid=0", "tcp://10.0.0.3:4712",
    ]  # fmt: skip
    assert _calls(Config(transport="chaos://rdma?seed=1"), TWO_CARDS) == ["chaos+rdma://10.0.0.3:4711?qps=2&seed=1"]
    assert _calls(Config(transport="tcp"), TWO_CARDS) == ["tcp://10.0.0.3:4712"]
    assert _calls(Config(rdma="off"), TWO_CARDS) == ["tcp://10.0.0.3:4712"]


def test_who_cannot_use_it_takes_the_next_address_and_says_why_once(caplog: pytest.LogCaptureFixture) -> None:
    why = RdmaHost("its cable is made of string")
    with caplog.at_level(logging.INFO, logger="byteps_like"):
        for _ in range(3):
            assert _calls(Config(), why) == ["tcp://10.0.0.3:4712"]
    assert [record.message for record in caplog.records if why.why in record.message] == [
        "peers offer RDMA, but links to them use the next address: its cable is made of string"
    ]


def test_no_device_is_worth_a_word_only_to_whom_has_named_one(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="byteps_like"):
        assert rdma_listen_url(Config(), "10.0.0.2", lambda: NONE) == ""
        assert rdma_listen_url(Config(rdma_devices="mlx5_0"), "10.0.0.2", lambda: NONE) == ""
    assert [record.levelno for record in caplog.records] == [logging.DEBUG, logging.WARNING]


@pytest.mark.parametrize("settings", [{"rdma": "require"}, {"transport": "rdma"}])
def test_required_and_not_there_is_an_error_with_the_reason(settings: dict) -> None:
    config = Config(**settings)
    with pytest.raises(ConfigError, match="this host can't use RDMA: there is no RDMA device"):
        rdma_listen_url(config, "127.0.0.1", lambda: NONE)
    with pytest.raises(ConfigError, match="this host can't use RDMA: there is no RDMA device"):
        _calls(config, NONE)
    with pytest.raises(ConfigError, match="rank 1 offers no RDMA, only tcp:"):
        peer_urls(config, ("tcp://10.0.0.3:1",), False, "rank 1", lambda: TWO_CARDS)
    assert _calls(config, TWO_CARDS) == ["rdma://10.0.0.3:4711?qps=2"]


def test_required_still_takes_shared_memory_on_one_host() -> None:
    assert _calls(Config(rdma="require"), TWO_CARDS, near=True) == list(OFFERED[:2])


@pytest.mark.parametrize(
    "settings", [{"rdma": "require", "transport": "tcp"}, {"rdma": "off", "transport": "rdma"}, {"rdma": "perhaps"}]
)
def test_contradictions_are_refused(settings: dict) -> None:
    with pytest.raises(ConfigError, match="rdma="):
        rdma_listen_url(Config(**settings), "10.0.0.2", lambda: TWO_CARDS)


def test_encryption_leaves_rdma_out_unless_it_may_be_in_the_clear() -> None:
    assert rdma_listen_url(Config(tls="on"), "10.0.0.2", _never) == ""
    offered = (*OFFERED[:2], "tls+tcp://10.0.0.3:4712")
    assert peer_urls(Config(tls="on"), offered, False, "rank 1", lambda: TWO_CARDS) == [offered[2]]
    clear = Config(tls="on", tls_rdma="clear")
    assert rdma_listen_url(clear, "10.0.0.2", lambda: TWO_CARDS).startswith("rdma://10.0.0.2")
    assert peer_urls(clear, offered, False, "rank 1", lambda: TWO_CARDS) == list(offered[1:])
    for settings in ({"rdma": "require"}, {"transport": "rdma"}):
        with pytest.raises(ConfigError, match="contradict each other, since RDMA is not encrypted; tls_rdma='clear'"):
            rdma_listen_url(Config(tls="on", **settings), "10.0.0.2", _never)
