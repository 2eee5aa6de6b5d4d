"""KV over portable and native workers, and native servers: against a dict of rows, and updates by their references;
bytes of keys that come again; bounds; links that are cut; servers that forget; what differs, and is refused."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("byteps_like._core", reason="the native core is not built")

from cutting_proxy import CuttingProxy
from mixed_job import DEADLINE, WORLDS, MixedJob, native_worker, portable_through

from byteps_like.errors import DeadlineError, InvalidArgumentError, MismatchError, StalledError
from byteps_like.portable.join import join
from byteps_like.portable.row_numbers import RowNumbers
from byteps_like.portable.table_lane import TableLane
from byteps_like.store.kv import KV
from byteps_like.store.updates.registry import update_of
from byteps_like.wire.frame import NACKED_FETCH, NACKED_ROWS, Header

RANKS = 3


@pytest.fixture(scope="module", params=WORLDS)
def job(request: pytest.FixtureRequest) -> Iterator[MixedJob]:
    made = MixedJob(makers=WORLDS[request.param])
    yield made
    made.close()


def drawn_keys(seed: int, count: int) -> np.ndarray:
    """Of all numbers, so on all shards."""
    draw = np.random.default_rng([seed, count])
    return np.unique(draw.integers(0, 2**64, count, np.uint64, endpoint=False))


def ints(seed: int, shape: Any, dtype: str = "int64") -> np.ndarray:
    """Sums of these are exact in any order, in float32, too."""
    return np.random.default_rng(seed).integers(-1000, 1000, shape).astype(dtype)


class Rows:
    """The reference: a dict of rows."""

    def __init__(self, width: int, dtype: str) -> None:
        self.width, self.dtype = width, dtype
        self.rows: dict[int, np.ndarray] = {}

    def add(self, keys: np.ndarray, values: np.ndarray) -> None:
        for key, row in zip(keys.tolist(), values, strict=True):
            self.rows[key] = self.rows.get(key, np.zeros(self.width, self.dtype)) + row

    def at(self, keys: np.ndarray) -> np.ndarray:
        zeros = np.zeros(self.width, self.dtype)
        return np.array([self.rows.get(key, zeros) for key in keys.tolist()], self.dtype).reshape(-1, self.width)


NUMBERS = iter(range(10**9))


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(["asp", "ssp:s=1", "bsp"]),
    st.sampled_from(["float32", "float64", "int64"]),
    st.integers(1, 5),
    st.lists(st.lists(st.integers(0, 200), max_size=40), min_size=2, max_size=6),
    st.integers(0, 2**32),
)
def test_sums_are_those_of_a_dict_of_rows(job, policy, dtype, width, lists, seed):
    name, spread = f"dict {next(NUMBERS)}", KV.spread(np.arange(201), 201)
    lists = [spread[sorted(set(one))] for one in lists]
    turn = threading.Barrier(RANKS)

    def train(worker: Any) -> tuple[np.ndarray, Any]:
        kv = KV(name, width, dtype, consistency=policy, worker=worker)
        for step, keys in enumerate(lists):
            values = ints(seed + 10 * step + worker.rank, (len(keys), width), dtype)
            future = kv.push(keys, values)
            if step % 2:
                kv.pull(keys).wait(DEADLINE)
        future.wait(DEADLINE)
        turn.wait(DEADLINE)
        kv.push([], np.zeros((0, width), dtype)).wait(DEADLINE)
        return kv.pull(spread).value, kv.pull_range(int(spread[5]), int(spread[150]))

    expected = Rows(width, dtype)
    for step, keys in enumerate(lists):
        for rank in range(RANKS):
            expected.add(keys, ints(seed + 10 * step + rank, (len(keys), width), dtype))
    for value, ranged in job.everybody(train):
        assert np.array_equal(value, expected.at(spread))
        assert ranged.keys.tolist() == sorted(key for key in expected.rows if spread[5] <= key < spread[150])
        assert np.array_equal(ranged.value, expected.at(ranged.keys))


@pytest.mark.parametrize("update", ["sgd:lr=0.1", "adam:lr=0.01", "row_adagrad:lr=0.5", "lamb:lr=0.1"])
def test_bsp_is_the_update_of_each_row_that_is_named(job, update):
    """A row that a contribution lacks counts as zero in it; each row has updates of its own."""
    rule, width, steps = update_of(update), 4, 3
    keys = KV.spread(np.arange(64), 64)
    named = [[keys[rank + step :: RANKS + step] for rank in range(RANKS)] for step in range(steps)]
    values = {key: np.zeros((1, width), np.float64) for key in keys.tolist()}
    states = {key: rule.fresh_state(value) for key, value in values.items()}
    counts = dict.fromkeys(values, 0)
    for step in range(steps):
        total: dict[int, np.ndarray] = {}
        for rank in range(RANKS):
            grads = ints(100 * step + rank, (len(named[step][rank]), width), "float64")
            for key, row in zip(named[step][rank].tolist(), grads, strict=True):
                total[key] = total.get(key, 0) + row
        for key, row in total.items():
            counts[key] += 1
            values[key], states[key] = rule.apply(values[key], states[key], row.reshape(1, -1), None, counts[key])

    def train(worker: Any) -> Any:
        kv = KV(f"bsp {update}", width, "float64", consistency="bsp", update=update, worker=worker)
        for step in range(steps):
            own = named[step][worker.rank]
            kv.push(own, ints(100 * step + worker.rank, (len(own), width), "float64"))
        return kv.pull(keys).value

    for found in job.everybody(train):
        for key, row in zip(keys.tolist(), found, strict=True):
            np.testing.assert_allclose(row, values[key].ravel(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("dtype", "most"), [("float32", 0.36), ("float64", 0.52)])
def test_the_same_keys_again_cost_no_bytes_of_keys(job, dtype, most):
    """Of one value each: a header for some hundred bytes apart, 4 or 8 bytes travel in place of 12 or 16."""
    keys, worker = drawn_keys(1, 200_000), job.workers[0]

    def cost(kv: KV) -> int:
        before = worker.stats()["bytes_sent"]
        kv.push(keys, np.ones(len(keys), dtype)).wait(DEADLINE)
        return worker.stats()["bytes_sent"] - before

    kv = job.everybody(lambda worker: KV(f"bytes {dtype}", 1, dtype, worker=worker))[0]
    first, again = cost(kv), cost(kv)
    assert again <= most * first, (again, first)
    pulled = worker.stats()["bytes_sent"]
    assert (kv.pull(keys).value == 2).all()
    assert worker.stats()["bytes_sent"] - pulled < 4 * 200
    header_and_ids = first - again - 8 * len(keys)
    assert 0 < header_and_ids < 0.02 * first, "the ids, and the headers of their frames"


def test_a_delay_bounds_who_is_ahead(job):
    steps, delay, begun, keys = 10, 2, [0] * RANKS, KV.spread(np.arange(8), 8)

    def train(worker: Any) -> None:
        kv = KV("delay", 1, "int64", delay=delay, worker=worker)
        for step in range(steps):
            begun[worker.rank] += 1
            kv.push(keys, np.full(8, 10 ** (4 * worker.rank)))
            value = int(kv.pull(keys[:1]).value[0, 0])
            done = [value // 10 ** (4 * rank) % 10_000 for rank in range(RANKS)]
            assert done[worker.rank] == step + 1
            assert min(begun) >= min(done) >= step + 1 - delay

    job.everybody(train)


def test_a_pull_waits_for_who_is_too_far_behind_and_what_is_after_it_too(job):
    keys, waits, turn = KV.spread(np.arange(4), 4), threading.Event(), threading.Barrier(RANKS)

    def train(worker: Any) -> None:
        kv = KV("waits", 1, "int64", delay=0, worker=worker)
        beside = KV("beside", 1, "int64", worker=worker)
        if worker.rank == 0:
            kv.push(keys, np.ones(4, np.int64))
            read = kv.pull(keys)
            later = beside.push(keys, np.ones(4, np.int64), after=[read])
            with pytest.raises(DeadlineError):
                read.wait(0.3)
            assert not later.done()
            waits.set()
            assert (read.value == RANKS).all() and later.counted
        else:
            assert waits.wait(DEADLINE)
            assert (beside.pull(keys).value == 0).all()
            kv.push(keys, np.ones(4, np.int64))
        turn.wait(DEADLINE)
        assert (beside.pull(keys).value == 1).all()

    job.everybody(train)


def test_a_policy_that_all_ranks_change_holds(job):
    keys, turn = KV.spread(np.arange(5), 5), threading.Barrier(RANKS)

    def train(worker: Any) -> Any:
        kv = KV("change", 1, "int64", consistency="bsp", worker=worker)
        early = kv.push(keys, np.ones(5, np.int64)) if worker.rank == 0 else None
        kv.change("asp")
        if early:
            early.wait(DEADLINE)
        turn.wait(DEADLINE)
        return kv.pull(keys).value

    assert all((value == 1).all() for value in job.everybody(train))


def test_nobody_waits_for_a_rank_that_has_finished(job):
    keys = KV.spread(np.arange(6), 6)

    def train(worker: Any) -> Any:
        kv = KV("finish", 1, "int64", delay=0, worker=worker)
        for _ in range(2 + 3 * worker.rank):
            kv.push(keys, np.ones(6, np.int64))
            kv.pull(keys).wait(DEADLINE)
        kv.finish()
        return kv.pull(keys).value

    assert all((value == 2 + 5 + 8).all() for value in job.everybody(train))


def test_nobody_waits_for_a_rank_that_ticks_and_it_is_in_no_mean(job):
    keys, turn = drawn_keys(3, 50), threading.Barrier(RANKS)

    def train(worker: Any) -> Any:
        kv = KV("ticks", consistency="bsp", update="sgd:lr=1", combine="mean", worker=worker)
        for step in range(RANKS + 1):
            idle = step in (worker.rank, RANKS)
            future = kv.tick() if idle else kv.push(keys, np.full((len(keys), 1), 1.0 + worker.rank))
            future.wait(DEADLINE)
            assert (future.counted, future.version) == (True, step + 1)
            assert future.age == (0 if idle else step)  # it has never pulled
            assert future.contributors == tuple(one for one in range(RANKS) if step not in (one, RANKS))
        turn.wait(DEADLINE)
        return kv.pull(keys).value

    for found in job.everybody(train):
        assert np.array_equal(found, np.full((len(keys), 1), -(2.5 + 2.0 + 1.5), np.float32))


def test_ages_and_versions_are_those_of_the_table(job):
    keys, turn = KV.spread(np.arange(16), 16), threading.Barrier(RANKS)

    def train(worker: Any) -> None:
        kv = KV("ages", 2, "float32", worker=worker)
        for rank in range(RANKS):
            if rank == worker.rank:
                future = kv.push(keys, np.ones((16, 2), np.float32))
                assert (future.version, future.age, future.counted) == (rank + 1, rank, True)
            turn.wait(DEADLINE)
        read = kv.pull(keys)
        assert read.version == RANKS
        turn.wait(DEADLINE)
        if worker.rank == 0:
            assert (kv.push(keys, np.ones((16, 2), np.float32)).age, kv.push([1], np.ones((1, 2))).age) == (0, 1)

    job.everybody(train)


def test_what_is_not_finite_is_left_out_and_said(job):
    kv = job.everybody(lambda worker: KV("finite", 1, "float32", worker=worker))[0]
    assert not kv.push([1, 2, 3], np.array([1, np.nan, 1], np.float32)).counted, "all are at one shard"
    assert (kv.pull([1, 2, 3]).value == 0).all()


def test_waiting_for_a_contribution_of_which_no_version_is_made_has_an_end(job, monkeypatch):
    kvs = job.everybody(lambda worker: KV("left", 1, "int64", consistency="k_of_n:k=2", worker=worker))
    worker, future = job.workers[0], kvs[0].push([1], [[1]])
    is_portable = "stall_timeout" in vars(worker)
    monkeypatch.setattr(worker if is_portable else type(worker), "stall_timeout", 0.2)
    words = "made no progress" if is_portable else "rank 0: no version has been made of a contribution to 'kv/left'"
    with pytest.raises(StalledError, match=words):
        future.wait()
    kvs[1].push([], np.zeros((0, 1), np.int64)).wait(DEADLINE)
    future.wait(DEADLINE)
    assert future.counted and (kvs[0].pull([1]).value == 1).all()


@pytest.mark.parametrize("makers", WORLDS.values(), ids=WORLDS)
def test_ranks_that_differ_hear_of_it(makers):
    made = MixedJob(makers=makers)

    def differ(worker: Any) -> str:
        with pytest.raises(MismatchError) as caught:
            kv = KV("differ", 1 + (worker.rank == 2), worker=worker)
            for _ in range(100):
                kv.push([1], np.zeros((1, 1 + (worker.rank == 2)), np.float32)).wait(DEADLINE)
                time.sleep(0.01)
        return str(caught.value)

    try:
        for text in made.everybody(differ):
            assert "'kv/differ'" in text and "rank 2" in text, text
    finally:
        made.close()


def test_opening_twice_is_one_table_and_other_terms_are_refused(job):
    def attempt(worker: Any) -> None:
        one, other = (KV("twice", 1, "int64", worker=worker) for _ in range(2))
        one.push([1], [[1]]).wait(DEADLINE)
        assert other.pull([1]).value[0, 0] >= 1
        with pytest.raises(MismatchError, match="'kv/twice'"):
            KV("twice", 1, "int64", consistency="bsp", worker=worker)
        with pytest.raises(InvalidArgumentError, match="after"):
            one.push([2, 1], [[1], [1]])

    job.everybody(attempt)


@pytest.mark.parametrize("policy", ["asp", "bsp"])
@pytest.mark.parametrize("seed", range(2))
def test_cut_connections_cost_nothing(policy, seed):
    """Connections are cut at any byte: lists are told anew, sums of integers stay exact, reads are whole."""
    proxies: list[CuttingProxy] = []

    def through(url: str) -> str:
        proxies.append(CuttingProxy(url, len(proxies) + 100 * seed, cuts=6, most_bytes=600_000))
        return proxies[-1].url

    made = MixedJob(makers=[lambda config: portable_through(config, through), native_worker])
    lists, pushes, ended = [drawn_keys(one, 20_000) for one in (1, 2)], 8, threading.Barrier(2)

    def train(worker: Any) -> list[np.ndarray]:
        kv = KV("cut", 1, "int64", consistency=policy, worker=worker)
        futures = []
        for step in range(pushes):
            keys = lists[step % 2]
            futures.append(kv.push(keys, np.full(len(keys), 10**step * (1 + worker.rank))))
            futures.append(kv.tick())
            if step % 3 == 0:
                own = sum(10**one * (1 + worker.rank) for one in range(step % 2, step + 1, 2))
                assert (kv.pull(keys).value >= own).all()
        assert all(future.counted for future in futures)
        ended.wait(DEADLINE)
        return [kv.pull(keys).value for keys in lists]

    try:
        for found in made.everybody(train):
            common = np.intersect1d(*lists)
            for own, value in enumerate(found):
                wanted = np.where(np.isin(lists[own], common), 3 * 11_111_111, 3 * 1_010_101 * 10**own)
                assert np.array_equal(value.ravel(), wanted)
        assert sum(proxy.cuts_left for proxy in proxies) < 12
    finally:
        made.close()
        for proxy in proxies:
            proxy.close()


def test_a_server_that_lacks_a_list_is_told_and_nothing_is_lost(monkeypatch):
    """A worker that takes every new list for one that is known is put right, and contributions keep their order."""
    refused: list[int] = []
    new, take = RowNumbers._new, TableLane._take_nack

    def known(self: RowNumbers, rows: Any) -> Any:
        slot = new(self, rows)
        assert slot is not None
        slot.known = True
        return slot

    def taken(self: TableLane, header: Header) -> None:
        refused.append(header.total)
        take(self, header)

    monkeypatch.setattr(RowNumbers, "_new", known)
    monkeypatch.setattr(TableLane, "_take_nack", taken)
    made = MixedJob(makers=[join] * 2)
    lists = [drawn_keys(seed, 300) for seed in range(3)]

    def train(worker: Any) -> list[np.ndarray]:
        kv = KV("lacks", 2, "int64", consistency="bsp", worker=worker)
        futures = []
        for step, keys in enumerate([*lists, *lists]):
            futures += [kv.push(keys, np.full((len(keys), 2), 1 + step)), kv.tick()]
        found = [kv.pull(keys) for keys in lists]
        assert all(future.counted for future in futures)
        return [one.value for one in found]

    try:
        for found in made.everybody(train):
            for step, value in enumerate(found):
                assert (value == 2 * (1 + step + 4 + step)).all()
    finally:
        made.close()
    assert {NACKED_ROWS, NACKED_FETCH} & set(refused) and len(refused) >= len(lists)


def test_one_server_is_enough():
    made = MixedJob(makers=[native_worker, join], hosts=("",))

    def train(worker: Any) -> Any:
        kv = KV("one", 3, "float32", update="sgd:lr=1", consistency="bsp", combine="mean", worker=worker)
        kv.push([1, 2**63], np.full((2, 3), worker.rank, np.float32))
        return kv.pull([1, 2, 2**63]).value

    try:
        for value in made.everybody(train):
            assert value[:, 0].tolist() == [-0.5, 0, -0.5]
    finally:
        made.close()
