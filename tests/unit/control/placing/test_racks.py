"""Racks: who sums for whom, who owns what, and through which aggregator a partition goes. Against counts by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps_like.control.placing.placement import Placer
from byteps_like.control.placing.racks import Ways, owner_weights, owners_of, racks_of
from byteps_like.control.placing.weights import check_replan, server_weights
from byteps_like.control.types import EventKind, Member, MemberRole, View, WatchEvent
from byteps_like.dtypes import DType
from byteps_like.errors import InvalidArgumentError, RefusedError
from byteps_like.worker.api import TensorSpec
from tests.unit.control.members.membership_world import Job, claim


def member(role: MemberRole, rank: int, rack: str, host: str = "", shards: int = 1, gbps: float = 0.0) -> Member:
    where = host or f"{role}{rank}"
    return Member(role, rank, where, where, 1, shards=shards, rack=rack, gbps=gbps, number=rank)


def world(workers: str, servers: str, shards: int = 1) -> View:
    """One of a rack "-" is in none."""
    of = {role: [rack.strip("-") for rack in racks] for role, racks in (("w", workers), ("s", servers))}
    return View(
        "job", 1,
        tuple(member(MemberRole.WORKER, rank, rack) for rank, rack in enumerate(of["w"])),
        tuple(member(MemberRole.SERVER, rank, rack, shards=shards) for rank, rack in enumerate(of["s"])),
    )  # fmt: skip


def test_racks_are_those_with_workers_and_aggregators() -> None:
    view = world("a-bac", "-abbd-")
    racks = racks_of(view)
    assert {name: rack.ranks for name, rack in racks.items()} == {"a": (0, 3), "b": (2,)}
    assert [one.rank for one in racks["b"].aggregators] == [2, 3]
    assert [one.rank for one in owners_of(view)] == [0, 5]


def test_portable_workers_are_in_no_rack() -> None:
    view = world("aa", "-a")
    portable = replace(view, workers=(view.workers[0], replace(view.workers[1], native=False)))
    assert racks_of(portable)["a"].ranks == (0,)


def test_aggregators_own_nothing_and_without_racks_nothing_changes() -> None:
    assert owner_weights(world("aabb", "ab--")) == pytest.approx([0, 0, 1 / 2, 1 / 2])
    plain = world("----", "---")
    assert owner_weights(plain) == server_weights(plain)
    assert owner_weights(world("--", "")) == []


def test_to_an_owner_a_rack_is_one_worker() -> None:
    """An owner beside the only worker that is in no rack: as beside one of three workers."""
    view = world("aaabbb-", "-ab")
    near = replace(view, servers=(replace(view.servers[0], host_id="worker6"), *view.servers[1:]), workers=view.workers)
    more = replace(near, servers=(*near.servers, member(MemberRole.SERVER, 3, "")))
    three = world("---", "--")
    beside = replace(three, servers=(replace(three.servers[0], host_id="worker2"), three.servers[1]))
    expected = server_weights(beside)
    assert owner_weights(more) == pytest.approx([expected[0], 0, 0, expected[1]])


def test_partitions_are_placed_on_owners_alone() -> None:
    view = world("aab", "a-b-", shards=2)
    placed = Placer.of(view, 1 << 20, owner_weights(view)).place(1, TensorSpec("t", DType.FLOAT32, (8 << 20,)))
    assert {part.server for part in placed.partitions} == {1, 3}


def test_weights_that_give_an_aggregator_something_are_refused() -> None:
    view = world("aa", "a-")
    check_replan(view, 0, [0.0, 1.0])
    with pytest.raises(InvalidArgumentError, match="rack"):
        check_replan(view, 0, [0.5, 0.5])


@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 1 << 20), st.integers(1, 400))
def test_ways_are_spread_evenly(aggregators: int, shards: int, tensor: int, parts: int) -> None:
    view = world("aa", "-" + "a" * aggregators, shards=shards)
    ways = Ways(view, racks_of(view)["a"])
    found = Counter(ways.of(tensor << 16 | part) for part in range(parts))
    slots = {(server, shard) for server in range(1, aggregators + 1) for shard in range(shards)}
    assert set(found) <= slots
    even = parts / len(slots)
    assert all(abs(found[slot] - even) <= 3 for slot in slots)


def test_ways_follow_the_cards_and_small_tensors_are_spread_too() -> None:
    view = world("aa", "-aa")
    owner, slow, quick = view.servers
    fast = replace(view, servers=(owner, replace(slow, gbps=1.0), replace(quick, gbps=3.0)))
    ways = Ways(fast, racks_of(fast)["a"])
    found = Counter(ways.of(tensor << 16)[0] for tensor in range(4000))
    assert found[2] / found[1] == pytest.approx(3, rel=0.05)


def test_a_world_without_an_owner_is_refused_with_the_reason() -> None:
    job = Job()
    aggregator = claim(MemberRole.SERVER, -1, "s0")
    job.join(replace(aggregator, member=replace(aggregator.member, rack="a")))
    job.worker(0, world_size=1, num_servers=1)
    for id in ("s0", "w0"):
        failed = [one for one in job.inbox[id] if isinstance(one, WatchEvent) and one.kind is EventKind.FAILED]
        assert len(failed) == 1
        assert isinstance(failed[0].error, RefusedError)
        assert "no server owns" in failed[0].text
        assert "(a)" in failed[0].text
