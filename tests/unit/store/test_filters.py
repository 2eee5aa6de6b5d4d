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
from byteps_like.store.filters.kkt import Kkt
from byteps_like.store.filters.noise import Noise
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


def test_rows_that_are_read_as_zeros_go_with_every_third_push_only():
    one, ids = Kkt(3), np.array([1, 5, 9], np.uint64)
    one.begin(2, DType.FLOAT32)

    def pushed() -> list[int]:
        return one.outgoing(KeyedRows(ids, np.ones((3, 2), np.float32))).ids.tolist()

    def read(*rows: tuple[float, float]) -> None:
        one.incoming(KeyedRows(ids, np.array(rows, np.float32)))

    read((0, 0), (0, 0), (0, 0))
    assert pushed() == [1, 5, 9], "before the first push all are zeros"
    read((0, 0), (0, 2), (0, 0))
    assert pushed() == [5] and pushed() == [5]
    assert pushed() == [1, 5, 9], "they are looked at again"
    one.incoming(KeyedRows(ids[:1], np.array([[np.nan, 0]], np.float32)))
    assert pushed() == [1, 5], "9 has not been read again, 1 has"
    read((0, 0), (0, 0), (3, 0))
    assert pushed() == [9]
    assert not len(one.rest().ids), "nothing waits"


def test_kkt_is_for_updates_that_hold_zeros():
    with pytest.raises(InvalidArgumentError, match="proximal does, which sgd does not"):
        KV("t", update="sgd", filters=["kkt"], worker=FakeTableWorker())
    KV("t", update="proximal", filters=["kkt:10"], worker=FakeTableWorker())
    with pytest.raises(InvalidArgumentError, match="every=0"):
        Kkt(0)
    with pytest.raises(InvalidArgumentError, match="one KV"):
        one = Kkt()
        for _ in range(2):
            KV("t", update="proximal", filters=[one], worker=FakeTableWorker())


def test_noise_is_of_its_deviation_and_can_be_repeated():
    ids, rows = np.arange(1000, dtype=np.uint64), np.full((1000, 100), 5.0)
    found = []
    for seed in (1, 1, 2, None):
        one = Noise(0.5, seed)
        one.begin(100, DType.FLOAT64)
        found.append(one.outgoing(KeyedRows(ids, rows)).rows - rows)
        assert (rows == 5).all() and not len(one.rest().ids)
    assert np.array_equal(found[0], found[1])
    for noise in found[1:]:
        assert abs(noise.mean()) < 4 * 0.5 / np.sqrt(noise.size) and abs(noise.std() - 0.5) < 0.005
        kurtosis = (noise**4).mean() / noise.std() ** 4
        assert abs(kurtosis - 3) < 0.1, "as of a normal distribution"
    assert not np.array_equal(found[0], found[2])


@pytest.mark.parametrize(
    ("text", "words"),
    [("noise:0", "std="), ("noise:std=1,seed=-1", "seed=-1"), ("noise", "lacks std"), ("kkt:every=x", "filter 'kkt:")],
)
def test_bad_noise_and_bad_texts_are_refused(text, words):
    with pytest.raises(InvalidArgumentError, match=words):
        KV("t", update="proximal", filters=[text], worker=FakeTableWorker())


def test_integers_get_no_noise():
    with pytest.raises(InvalidArgumentError, match="noise takes float32"):
        KV("t", 1, "int64", filters=["noise:1"], worker=FakeTableWorker())
