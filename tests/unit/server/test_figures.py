"""Figures of values that servers keep: partitions, tensors and servers are put together the same way."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps_like.launch.kept import store_of
from byteps_like.server.figures import KeptFigures, RankFigures, figures_of, merged_by

counts = st.integers(0, 1000)
seconds = st.tuples(*[st.floats(0, 100)] * 4)
ranks = st.builds(RankFigures, *[counts] * 7, seconds, seconds)


@given(st.lists(ranks, min_size=3, max_size=3))
def test_the_order_makes_no_difference(three: list[RankFigures]) -> None:
    results = {one.merged(two).merged(third) for one, two, third in permutations(three)}
    assert results == {three[0].merged(three[1].merged(three[2]))}


def test_counts_add_up_clocks_are_the_least_and_seconds_the_most() -> None:
    one = RankFigures(5, 4, 1, 0, 2, 8, 3, (1.0, 2.0, 0.0, 0.0), (0.0, 0.5, 0.0, 0.0))
    two = RankFigures(3, 2, 0, 1, 0, 1, 1, (0.5, 4.0, 0.0, 0.0), (0.0, 0.25, 1.0, 0.0))
    both = RankFigures(3, 6, 1, 1, 2, 9, 3, (1.0, 4.0, 0.0, 0.0), (0.0, 0.5, 1.0, 0.0))
    assert one.merged(two) == both
    assert both.staleness == 1.5 and RankFigures().staleness == 0


def test_shards_of_a_server_are_one() -> None:
    rank = (1, 1, 0, 0, 0, 2, 2, (0.0,) * 4, (0.0,) * 4)
    shards = [{7: {"keys": 2, "ranks": [rank, rank]}}, {}, {7: {"keys": 1, "ranks": [rank, rank]}}]
    found = figures_of(shards)
    assert found[7].partitions == 3
    assert [(one.clock, one.counted, one.ages) for one in found[7].ranks] == [(1, 2, 4)] * 2


def test_a_server_that_has_heard_of_more_ranks_adds_them() -> None:
    found = merged_by([("a", KeptFigures(1, (RankFigures(1, 1),))), ("a", KeptFigures(1, (RankFigures(2, 2),) * 2))])
    assert [one.counted for one in found["a"].ranks] == [3, 2]


@pytest.mark.parametrize(
    ("name", "store"),
    [("store/a/w", "store/a"), ("store/a/b/w", "store/a/b"), ("kv/ids", "kv/ids"), ("fc.0", "fc.0"), ("", "tensor 4")],
)
def test_tensors_are_those_of_their_store(name: str, store: str) -> None:
    assert store_of({4: name} if name else {}, 4) == store
