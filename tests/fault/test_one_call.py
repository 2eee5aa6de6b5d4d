"""A mismatch costs one call: it is raised on every rank, at once, and the next call works; with servers and without."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fault import mismatches
from tests.multiprocess.real_world import Cluster, Pool, job

AT_ONCE = 3.0
"""Seconds: some tenths as a rule, more where other tests have the machine."""


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    processes = Pool(4)
    yield processes
    processes.close()


@pytest.fixture(scope="module", params=[1, 0], ids=["server", "collectives"])
def servers(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def cluster(servers: int) -> Iterator[Cluster]:
    with job(3, servers) as found:
        yield found


@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
@pytest.mark.parametrize("deviant", [0, 2])
def test_every_kind(pool: Pool, cluster: Cluster, named: bool, deviant: int) -> None:
    ranks = pool.run(cluster, mismatches.every_kind, named, deviant, together=True)
    for kind in mismatches.KINDS:
        for first, second, after in (found[kind] for found in ranks):
            for name, text, seconds in (first, second):
                assert name == "MismatchError", (kind, name, text)
                assert f"rank {deviant}" in text and "disagree" in text, text
                assert seconds < AT_ONCE, (kind, seconds)
                assert not named or f"layer.{kind}" in text, text
            assert after == 6.0, kind


@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
def test_fifty_in_a_row(pool: Pool, cluster: Cluster, named: bool) -> None:
    for seen, after in pool.run(cluster, mismatches.many_in_a_row, 50, named, together=True):
        assert {name for name, _, _ in seen} == {"MismatchError"}
        assert max(seconds for _, _, seconds in seen) < AT_ONCE
        assert after == 6.0


@pytest.mark.parametrize("ranks", [2, 4])
def test_other_numbers_of_ranks(pool: Pool, servers: int, ranks: int) -> None:
    with job(ranks, servers) as cluster:
        for seen, after in pool.run(cluster, mismatches.many_in_a_row, 4, True, together=True):
            assert {name for name, _, _ in seen} == {"MismatchError"}
            assert after == ranks * (ranks + 1) / 2


@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
def test_what_else_is_in_flight_goes_on(pool: Pool, cluster: Cluster, named: bool) -> None:
    for found, after in pool.run(cluster, mismatches.others_go_on, named, together=True):
        assert found == ["", "", "MismatchError", "", ""]
        assert after == 6.0


@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
def test_a_rank_that_comes_later_hears_the_same(pool: Pool, cluster: Cluster, named: bool) -> None:
    for (name, text, _), after in pool.run(cluster, mismatches.late_rank, named, together=True):
        assert name == "MismatchError", text
        assert "rank 0 called push_pull average of float32[4], rank 1 called push_pull average of float32[5]" in text
        assert after == 6.0


@pytest.mark.parametrize("kind", ["name", "process set"])
@pytest.mark.parametrize("deviant", [0, 1])
def test_ranks_that_begin_something_else_in_its_place(pool: Pool, cluster: Cluster, kind: str, deviant: int) -> None:
    for calls in pool.run(cluster, mismatches.standstills, kind, deviant, together=True):
        for (name, text, seconds), of_all, of_some in calls:
            assert name == "MismatchError", text
            assert f"rank {deviant} called push_pull" in text and "disagree on which call is next" in text, text
            assert ("layer.weight" if kind == "name" else "process set 1") in text
            assert seconds < AT_ONCE
            assert (of_all, of_some) == (12.0, 2.0)


@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_adasum_on_one_rank_only(pool: Pool, servers: int, ranks: int, named: bool) -> None:
    with job(ranks, servers) as cluster:
        for (name, text, seconds), after in pool.run(cluster, mismatches.adasum, named, 1, together=True):
            assert name == "MismatchError" and "rank 1 called push_pull adasum of float32[4]" in text, text
            assert seconds < AT_ONCE
            assert after == ranks * (ranks + 1) / 2


def test_roots_and_kinds_of_object_calls(pool: Pool, cluster: Cluster) -> None:
    for calls in pool.run(cluster, mismatches.roots, 0, together=True):
        for what, (name, text, seconds), after in calls:
            assert name == "MismatchError" and "rank 0 called" in text, text
            assert f"for {what}" in text, text
            assert what == "allgather_object" or ("from rank 1" in text and "from rank 2" in text), text
            assert seconds < AT_ONCE
            assert after == [0, 1, 2]


@pytest.mark.parametrize("late", [False, True], ids=["together", "one late"])
def test_an_object_in_place_of_a_sum(pool: Pool, cluster: Cluster, late: bool) -> None:
    """Though a rank comes out of init() when the others have failed in what it is about to call."""
    if late:
        pool.run(cluster, mismatches.will_be_late)
    for (name, text, _), after, of_all in pool.run(cluster, mismatches.object_or_sum, together=True):
        assert name == "MismatchError" and "for broadcast_object from rank 0" in text, text
        assert (after, of_all) == ([0, 1, 2], 6.0)


@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
def test_a_rank_that_has_joined_goes_on(pool: Pool, cluster: Cluster, named: bool) -> None:
    *callers, joined = pool.run(cluster, mismatches.joined, named, together=True)
    for seen, sums, after in callers:
        assert {name for name, _, _ in seen} == {"MismatchError"}, seen
        assert max(seconds for _, _, seconds in seen) < AT_ONCE
        assert (sums, after) == ([3.0] * 6, [6.0, 6.0])
    assert joined == ([], [], [6.0, 6.0])


def test_who_waits_for_what_will_come_is_left_alone(pool: Pool, cluster: Cluster) -> None:
    assert pool.run(cluster, mismatches.other_orders, together=True) == [[3.0] * 3] * 3
    assert pool.run(cluster, mismatches.other_thread, together=True) == [[6.0] * 3] * 3


def test_a_name_in_flight_is_refused_and_its_operation_goes_on(pool: Pool, cluster: Cluster) -> None:
    ranks = pool.run(cluster, mismatches.twice, together=True)
    name, text, _ = ranks[0][0]
    assert name == "InvalidArgumentError" and "layer.weight" in text and "in flight" in text
    assert {found[1:] for found in ranks} == {(3.0, 6.0)}


def test_calls_without_a_name_meet_in_the_order_in_which_they_begin(pool: Pool, cluster: Cluster) -> None:
    assert pool.run(cluster, mismatches.other_synchronization, together=True) == [(3.0, 30.0, 6.0)] * 3
    with_all = pool.run(cluster, mismatches.more_than_lanes, together=True)
    assert with_all == [[3.0 * number for number in range(100)]] * 3


def test_ever_other_shapes_leave_nothing_behind(pool: Pool, cluster: Cluster, servers: int) -> None:
    for before, after, right in pool.run(cluster, mismatches.alternating, 200, together=True):
        assert right
        assert after <= before <= 8
