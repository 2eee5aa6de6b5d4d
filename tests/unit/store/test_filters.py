"""Filters of rows: what goes and what stays adds up to what was pushed."""

from __future__ import annotations

import numpy as np
import pytest
from fake_table_worker import FakeTableWorker
from hypothesis import given, settings
from hypothesis import strategies as st

from byteps_like.dtypes import DType
from byteps_like.errors import InvalidArgumentError
from byteps_like.store.filters.filter import KeyedRows
from byteps_like.store.filters.significant import Significant
from byteps_like.store.kv import KV

STEPS = st.lists(st.dictionaries(st.integers(0, 12), st.integers(-20, 20), max_size=8), max_size=12)


@settings(max_examples=200, deadline=None)
@given(STEPS, st.integers(1, 30))
def test_what_is_not_significant_stays_and_adds_up(steps, delta):
    """Integers as fp64, so that sums are exact in any order."""
    one, width = Significant(delta), 2
    one.begin(width, DType.FLOAT64)
    pushed, gone = np.zeros((13, width)), np.zeros((13, width))
    for step in steps:
        ids = np.array(sorted(step), np.uint64)
        rows = np.array([[step[key], -step[key] / 2] for key in sorted(step)]).reshape(-1, width)
        before = rows.copy()
        found = one.outgoing(KeyedRows(ids, rows))
        assert np.array_equal(rows, before), "they are the caller's"
        pushed[ids.astype(int)] += rows
        gone[found.ids.astype(int)] += found.rows
        assert (np.abs(found.rows).max(1, initial=0) >= delta).all() or not len(found.ids)
        assert (found.ids[1:] > found.ids[:-1]).all()
        assert (np.abs(pushed - gone) < delta).all()
    rest = one.rest()
    assert (rest.ids[1:] > rest.ids[:-1]).all()
    gone[rest.ids.astype(int)] += rest.rows
    assert np.array_equal(gone, pushed) and not len(one.rest().ids)


def test_what_is_not_finite_goes():
    one = Significant(1.0)
    one.begin(1, DType.FLOAT32)
    found = one.outgoing(KeyedRows(np.array([1, 2, 3], np.uint64), np.array([[np.nan], [0.5], [np.inf]], np.float32)))
    assert found.ids.tolist() == [1, 3]


def test_a_table_gets_what_is_significant_and_the_rest_at_the_end():
    worker = FakeTableWorker()
    kv = KV("t", 1, "float64", filters=[Significant(1.0)], worker=worker)
    keys = [1, 1 << 52, 1 << 63]
    for _ in range(3):
        kv.push(keys, [[0.4], [2.0], [0.25]]).wait()
    assert np.allclose(kv.pull(keys).value.ravel(), [1.2, 6, 0])
    assert worker.table is not None and worker.table.versions == [3, 3, 3], "each push counts, whatever goes"
    kv.flush().wait()
    assert np.allclose(kv.pull(keys).value.ravel(), [1.2, 6, 0.75])
    assert KV("u", worker=worker).flush().version == 1


@pytest.mark.parametrize("delta", [0, -1.0, float("inf"), float("nan")])
def test_a_delta_that_cannot_be_is_refused(delta):
    with pytest.raises(InvalidArgumentError, match="delta="):
        Significant(delta)


def test_a_filter_is_that_of_one_table():
    one = Significant(1.0)
    KV("t", filters=[one], worker=FakeTableWorker())
    with pytest.raises(InvalidArgumentError, match="one KV"):
        KV("u", filters=[one], worker=FakeTableWorker())
