"""Servers are weighted by the optimum of their hosts: who is where, and how fast each card is."""

from dataclasses import replace
from unittest.mock import patch

import pytest

from byteps_like.config import Config
from byteps_like.control.hosts import card
from byteps_like.control.placing.placement import ON_ONE_HOST, PARTITION_BYTES, slowest_card, usual_partition
from byteps_like.control.placing.weights import hosts_of, server_weights
from byteps_like.control.types import Member, MemberRole, View


def member(role: MemberRole, rank: int, host: str, gbps: float = 0.0, shards: int = 1) -> Member:
    return Member(role, rank, host, host, 1, shards=shards, gbps=gbps)


def world(workers: str, servers: str, rates: dict[str, float] | None = None, shards: int = 1) -> View:
    """Members on hosts with names of one letter."""
    known = rates or {}
    return View(
        "job", 1,
        tuple(member(MemberRole.WORKER, rank, host, known.get(host, 0.0)) for rank, host in enumerate(workers)),
        tuple(member(MemberRole.SERVER, rank, host, known.get(host, 0.0), shards) for rank, host in enumerate(servers)),
    )  # fmt: skip


def test_servers_beside_workers_and_a_spare_one() -> None:
    assert server_weights(world("abcd", "abcdx")) == pytest.approx([3 / 18] * 4 + [6 / 18])
    assert server_weights(world("abcd", "wxyz")) == pytest.approx([1 / 4] * 4)
    assert server_weights(world("abcd", "")) == []


def test_partitions_of_a_job_on_one_host_are_smaller_unless_it_says_how_large() -> None:
    def told(view: View, size: int) -> View:
        return replace(view, settings={"partition_bytes": str(size)})

    alone, apart = world("aa", "a"), [world("aa", "b"), world("ab", "a"), world("ab", "ab")]
    assert usual_partition(alone) == usual_partition(told(alone, PARTITION_BYTES)) == ON_ONE_HOST
    assert [usual_partition(told(alone, size)) for size in (4096, 8 << 20)] == [4096, 8 << 20]
    assert {usual_partition(view) for view in apart} == {PARTITION_BYTES}


def test_the_slowest_card_is_one_that_traffic_crosses_and_whose_rate_is_known() -> None:
    assert slowest_card(world("ab", "abc", {"a": 1.0, "c": 0.25})) == 0.25
    assert slowest_card(world("aa", "a", {"a": 1.0})) == slowest_card(world("ab", "ab")) == float("inf")


def test_servers_on_one_host_share_its_part() -> None:
    assert server_weights(world("abcd", "abcdxx")) == pytest.approx([3 / 18] * 4 + [3 / 18] * 2)
    assert server_weights(world("aaaa", "aa")) == pytest.approx([1 / 2] * 2)


def test_declared_rates_count_and_measured_ones_more() -> None:
    slow = world("abcd", "wxyz", {"w": 0.25, "x": 1.0})
    found = server_weights(slow)
    assert found[0] == pytest.approx(found[1] / 4, rel=1e-6) and sum(found) == pytest.approx(1)
    assert hosts_of(slow)["y"].rate == pytest.approx(0.625)
    assert hosts_of(slow, {"w": 3.0})["w"].rate == 3.0


def test_the_rate_of_a_card() -> None:
    class Speed:
        speed = 25000

    with patch.object(card.psutil, "net_if_stats", return_value={"eth9": Speed}):
        assert card.link_gbps(Config(interface="eth9"), "10.0.0.1") == 25.0
        assert card.link_gbps(Config(interface="eth8"), "10.0.0.1") == 0.0
        assert card.link_gbps(Config(interface="eth9", link_gbps=1.5), "10.0.0.1") == 1.5
    assert card.card_of(Config(), "127.0.0.1") == "lo"
    assert card.card_of(Config(), "no address of this machine") == ""
