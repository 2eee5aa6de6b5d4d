"""Tables over native and portable workers, and native servers: against a dict of rows; first values, optimizers on
servers, checkpoints, what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("byteps_like._core", reason="the native core is not built")

from byteps_like.errors import InvalidArgumentError, MismatchError
from byteps_like.store.tables.first_values import Normal, Uniform
from byteps_like.store.tables.ids import mixed, places_of, unmixed
from byteps_like.store.tables.table import Table
from tests.contract.mixed_job import WORLDS, MixedJob

RANKS = 3
NUMBERS = iter(range(10**9))


@pytest.fixture(scope="module", params=WORLDS)
def job(request: pytest.FixtureRequest) -> Iterator[MixedJob]:
    made = MixedJob(makers=WORLDS[request.param])
    yield made
    made.close()


def tables(job: MixedJob, name: str, dim: int, **options: Any) -> list[Table]:
    return job.everybody(lambda worker: Table(name, dim, worker=worker, **options))


def first_rows(init: Any, ids: np.ndarray, dim: int, dtype: str = "float32") -> np.ndarray:
    return np.concatenate([init.make(int(key), dim, dtype) for key in mixed(ids.astype(np.uint64)).tolist()])


@given(st.lists(st.integers(0, 2**64 - 1), max_size=50))
def test_mixed_ids_are_others_and_come_back(ids: list[int]) -> None:
    array = np.array(ids, np.uint64)
    assert np.array_equal(unmixed(mixed(array)), array)
    assert len(set(mixed(array).tolist())) == len(set(ids))


def test_mixed_ids_load_all_buckets_alike() -> None:
    """Whatever the ids are: one after the other, or multiples of a power of two."""
    for step in (1, 1 << 12, 1 << 40):
        buckets = mixed(np.arange(40_960, dtype=np.uint64) * np.uint64(step)) >> np.uint64(52)
        assert np.bincount(buckets.astype(np.int64), minlength=4096).max() < 40


@given(st.lists(st.integers(0, 9), max_size=30), st.integers(1, 3))
def test_gradients_of_one_id_are_added_up(ids: list[int], dim: int) -> None:
    draw = np.random.default_rng(len(ids))
    gradients = draw.normal(size=(len(ids), dim)).astype(np.float32)
    places = places_of(np.array(ids, np.int64))
    expected = {key: np.zeros(dim, np.float32) for key in mixed(np.array(sorted(set(ids)), np.uint64)).tolist()}
    for key, gradient in zip(mixed(np.array(ids, np.uint64)).tolist(), gradients, strict=True):
        expected[key] = expected[key] + gradient
    rows = places.summed(gradients)
    assert places.keys.tolist() == sorted(expected)
    assert np.allclose(rows, np.array([expected[key] for key in sorted(expected)]).reshape(-1, dim), atol=1e-5)


@pytest.mark.parametrize("init", [Uniform(0.5, seed=9), Normal(0.1)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_all_ids_have_a_row(job: MixedJob, init: Any, dtype: str) -> None:
    """The same on all ranks, before and after it is first written, in any order, with or without twins."""
    several = tables(job, f"first {next(NUMBERS)}", 5, init=init, dtype=dtype, optimizer="sgd:lr=1.0")
    ids = np.array([[7, 2**64 - 1, 7], [0, 1 << 52, 5]], np.uint64)
    expected = first_rows(init, ids.ravel(), 5, dtype).reshape(2, 3, 5)
    for table in several:
        found = table.pull(ids).value
        assert found.dtype == dtype and np.array_equal(found, expected)
    several[0].push([5, 5], np.full((2, 5), 0.25, dtype)).wait(30)
    expected[1, 2] -= np.asarray(0.5, dtype)
    assert np.array_equal(several[1].pull(ids).value, expected)
    found_ids, rows = next(several[2].all_rows())
    assert found_ids.tolist() == [5] and np.array_equal(rows, expected[1, 2:])


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.lists(st.integers(0, 60), max_size=40), min_size=1, max_size=6),
    st.integers(1, 5),
    st.integers(0, 2**32),
)
def test_it_is_a_dict_of_rows(job: MixedJob, lists: list[list[int]], dim: int, seed: int) -> None:
    init = Uniform(1.0, seed=seed)
    several = tables(job, f"dict {next(NUMBERS)}", dim, init=init, dtype="float64", optimizer="sgd:lr=0.5")
    draw = np.random.default_rng(seed)
    every = np.arange(61)
    expected = first_rows(init, every, dim, "float64")
    for turn, ids in enumerate(lists):
        gradients = draw.integers(-4, 5, (len(ids), dim)).astype(np.float64)
        several[turn % RANKS].push(np.array(ids, np.int64), gradients).wait(30)
        for number, gradient in zip(ids, gradients, strict=True):
            expected[number] -= 0.5 * gradient
        some = draw.integers(0, 61, (3, 4))
        assert np.allclose(several[(turn + 1) % RANKS].pull(some).value, expected[some], rtol=0, atol=1e-12)
    assert np.allclose(several[0].pull(every).value, expected, rtol=0, atol=1e-12)


def test_the_learning_rate_may_change(job: MixedJob) -> None:
    several = tables(job, "rate", 2, optimizer="sgd:lr=1.0", init="zeros")
    several[0].push([3], np.ones((1, 2))).wait(30)
    several[0].lr = 0.25
    several[0].push([3], np.ones((1, 2)))
    several[0].wait()
    assert several[0].pull([3]).value.tolist() == [[-1.25, -1.25]]


def test_a_checkpoint_has_rows_and_the_state_of_the_optimizer(job: MixedJob, tmp_path: Path) -> None:
    one = tables(job, "saved", 4, optimizer="adagrad:lr=0.5")
    ids, gradients = np.arange(100), np.random.default_rng(0).normal(size=(100, 4)).astype(np.float32)
    one[0].push(ids, gradients).wait(30)
    before = one[0].pull(ids).value
    job.everybody(lambda worker: one[worker.rank].checkpoint(tmp_path / "saved"))
    one[1].push(ids, gradients).wait(30)
    after = one[0].pull(ids).value
    job.everybody(lambda worker: one[worker.rank].restore(tmp_path / "saved"))
    assert np.array_equal(one[2].pull(ids).value, before)
    one[2].push(ids, gradients).wait(30)
    assert np.array_equal(one[0].pull(ids).value, after)
    assert not np.array_equal(before, after)
    assert np.array_equal(one[0].pull([10**6]).value, first_rows(Uniform(), np.array([10**6]), 4))


def test_ranks_must_mean_the_same() -> None:
    """Where they don't, the job ends."""
    with (
        closing(MixedJob(makers=WORLDS["mixed"])) as job,
        pytest.raises(MismatchError, match=r"rows uniform:bound=0\.1,seed=0; rank"),
    ):
        job.everybody(lambda worker: Table("differs", 4, init=Uniform(0.1 + 0.1 * worker.rank), worker=worker))


def test_what_is_no_table_and_what_are_no_ids(job: MixedJob) -> None:
    worker = job.workers[0]
    with pytest.raises(InvalidArgumentError, match="float32 or float64"):
        Table("ints", 4, dtype="int64", worker=worker)
    with pytest.raises(InvalidArgumentError, match="rows begin as zeros, uniform, normal"):
        Table("ones", 4, init="ones", worker=worker)
    (table, *_) = tables(job, f"refuses {next(NUMBERS)}", 4)
    for ids, why in (([-1], "one is -1"), ([0.5], "not float64"), ([True], "not bool")):
        with pytest.raises(InvalidArgumentError, match=why):
            table.pull(np.array(ids))
    with pytest.raises(InvalidArgumentError, match=r"\[2, 3\] is not the shape .* \[2, 4\]"):
        table.push([1, 2], np.zeros((2, 3)))
