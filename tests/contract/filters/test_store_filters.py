"""Stores whose contributions go through filters, over portable and native workers: what arrives, in how many bytes,
over links that are cut, too; and ranks that differ."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("byteps_like._core", reason="the native core is not built")

from byteps_like.compression.codec import Draw
from byteps_like.dtypes import DType
from byteps_like.errors import InvalidArgumentError, MismatchError
from byteps_like.portable.join import join
from byteps_like.store.filters.fixed_float import FixedFloat
from byteps_like.store.filters.payloads import SERVER, Payloads
from byteps_like.store.store import Store
from byteps_like.worker.api import TensorSpec
from tests.contract.cutting_proxy import CuttingProxy
from tests.contract.mixed_job import DEADLINE, WORLDS, MixedJob, native_worker, portable_through

RANKS = 3
SIZE = 300_007
"""Elements: several partitions, the last one uneven."""


@pytest.fixture(scope="module", params=WORLDS)
def job(request: pytest.FixtureRequest) -> Iterator[MixedJob]:
    made = MixedJob(makers=WORLDS[request.param])
    yield made
    made.close()


@pytest.mark.parametrize("dtype", ["int64", "float32", "float64"])
@pytest.mark.parametrize("policy", ["asp", "bsp", "ssp:s=1", "k_of_n:k=2,late=next"])
def test_zlib_changes_nothing(job, dtype, policy):
    turn, first = threading.Barrier(RANKS), np.arange(SIZE, dtype=dtype)

    def train(worker: Any) -> Any:
        store = Store(f"zlib {dtype} {policy}", {"w": first, "one": first[:1]}, consistency=policy, combine="sum",
                      filters=["zlib"], worker=worker)  # fmt: skip
        futures = []
        for step in range(3):
            for name, size in (("w", SIZE), ("one", 1)):
                futures.append(store.push(name, np.full(size, 10**step * (1 + worker.rank), dtype)))
        turn.wait(DEADLINE)
        store.change("asp")  # so that all counts at the end
        for future in futures:
            future.wait(DEADLINE)
        turn.wait(DEADLINE)
        found = {name: np.empty(size, dtype) for name, size in (("w", SIZE), ("one", 1))}
        for name, out in found.items():
            store.pull(name, out).wait(DEADLINE)
        return found

    for found in job.everybody(train):
        assert np.array_equal(found["w"], first + 6 * 111) and found["one"] == 6 * 111


@pytest.mark.parametrize("filters", [["float:3"], ["float:1", "zlib"]])
def test_floats_are_off_by_a_step_and_right_in_the_mean(job, filters):
    size, values = int(filters[0][-1]), np.random.default_rng(3).normal(size=SIZE)

    def train(worker: Any) -> Any:
        store = Store(f"floats {filters}", {"w": np.zeros(SIZE)}, filters=filters, worker=worker)
        out = np.empty(SIZE)
        store.push_pull("w", values, out).wait(DEADLINE)
        return out

    step = (values.max() - values.min()) / (2 ** (8 * size) - 2)
    for found in job.everybody(train):
        assert 0 < np.abs(found - values).max() < 2.1 * step  # rounded as contributions, and once more to be read
        assert abs((found - values).mean()) < 5 * step / np.sqrt(RANKS * SIZE)


@pytest.mark.parametrize(("filters", "most"), [((), 4.0), (("float:2",), 2.0), (("float:1", "zlib"), 0.05)])
def test_bytes_of_a_push(job, filters, most):
    rank = 1
    stores = job.everybody(
        lambda own: Store(f"bytes {filters}", {"w": np.zeros(SIZE, np.float32)}, consistency="asp", filters=filters,
                          worker=own)
    )  # fmt: skip
    worker, store = job.workers[rank], stores[rank]
    before = worker.stats()["bytes_sent"]
    store.push("w", np.ones(SIZE, np.float32)).wait(DEADLINE)
    sent = worker.stats()["bytes_sent"] - before
    assert sent <= most * SIZE * 1.02 + 4000
    if "zlib" not in filters:
        assert sent >= most * SIZE


def test_what_is_read_goes_through_the_filters_in_so_many_bytes_and_is_the_same_for_all(job):
    values = np.random.default_rng(5).normal(size=SIZE).astype(np.float32)

    def train(worker: Any) -> tuple[np.ndarray, list[int], tuple[slice, ...]]:
        store = Store("read", {"w": values}, consistency="bsp", filters=["float:bytes=2"], worker=worker)
        out, received = np.empty_like(values), []
        for step in range(2):
            before = worker.stats()["payload_received"]
            store.pull("w", out).wait(DEADLINE)
            received.append(worker.stats()["payload_received"] - before)
            if step == 0:
                assert store.push("w", np.zeros_like(values)).contributors == (0, 1, 2)
        return out, received, store.slices("w")

    found = job.everybody(train)
    keys = [
        part.key for part in job.workers[0].declare([TensorSpec("store/read/w", DType.FLOAT32, (SIZE,))])[0].partitions
    ]
    for out, received, slices in found:
        assert received == [sum(8 + 2 * (one.stop - one.start) for one in slices)] * 2
        for key, own in zip(keys, slices, strict=True):
            wanted = Payloads([FixedFloat(2)], DType.FLOAT32)
            payload = wanted.encode(values[own], Draw(key, 1, SERVER))
            assert np.array_equal(out[own], wanted.decode(payload.tobytes(), own.stop - own.start))


def test_values_are_not_read_through_a_codec_but_through_what_is_behind_it(job):
    values = np.random.default_rng(6).normal(size=SIZE).astype(np.float32)
    values[: SIZE // 2] = 0

    def train(worker: Any) -> None:
        store = Store("behind", {"w": values}, codec="int8", filters=["zlib"], worker=worker)
        before, out = worker.stats()["payload_received"], np.empty_like(values)
        store.pull("w", out).wait(DEADLINE)
        received = worker.stats()["payload_received"] - before
        assert np.array_equal(out, values)
        wanted = [len(zlib.compress(values[one].tobytes(), 1)) for one in store.slices("w")]
        assert 0.99 * sum(wanted) <= received <= 1.01 * sum(wanted) < 0.6 * values.nbytes

    job.everybody(train)


def test_parts_are_read_alone_and_what_a_checkpoint_brings_back_is_no_value_from_before(job, tmp_path):
    first = np.arange(SIZE, dtype=np.int64)

    def train(worker: Any) -> np.ndarray:
        store = Store("again", {"w": first}, consistency="asp", combine="sum", filters=["zlib"], worker=worker)
        out = np.full_like(first, -1)
        store.pull("w", out, part=1).wait(DEADLINE)
        own = store.slices("w")[1]
        assert np.array_equal(out[own], first[own]) and (out[: own.start] == -1).all() and (out[own.stop :] == -1).all()
        worker.barrier(DEADLINE)
        store.checkpoint(tmp_path / "saved")
        for rank in range(RANKS):
            if worker.rank == rank:
                store.push("w", np.ones_like(first)).wait(DEADLINE)
            worker.barrier(DEADLINE)
        store.pull("w", out).wait(DEADLINE)
        assert np.array_equal(out, first + RANKS)
        worker.barrier(DEADLINE)
        store.restore(tmp_path / "saved")
        store.pull("w", out).wait(DEADLINE)
        return out

    for found in job.everybody(train):
        assert np.array_equal(found, first)


def test_a_weight_a_rate_and_what_is_not_finite_are_as_without(job):
    def train(worker: Any) -> Any:
        store = Store(
            "terms", {"w": np.zeros(10)}, consistency="asp", update="sgd:lr=1", filters=["zlib"], worker=worker
        )
        worker.barrier(DEADLINE)
        if worker.rank == 0:
            assert not store.push("w", np.full(10, np.nan)).counted
            assert store.push("w", np.ones(10), lr=0.5).counted
            store.tick("w").wait(DEADLINE)
        worker.barrier(DEADLINE)
        out = np.empty(10)
        store.pull("w", out).wait(DEADLINE)
        return out

    for found in job.everybody(train):
        assert (found == -0.5).all()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["portable", "native"])
def test_cut_connections_cost_nothing(kind, seed):
    proxies: list[CuttingProxy] = []

    def through(url: str) -> str:
        proxies.append(CuttingProxy(url, seed, cuts=6, most_bytes=100_000))
        return proxies[-1].url

    settings = {} if kind == "portable" else {"transport": f"chaos://auto?seed={seed + 1}&drop=0.1"}
    makers = [lambda config: portable_through(config, through)] if kind == "portable" else [native_worker]
    made = MixedJob(makers=[*makers, join], **settings)
    try:
        turn, steps = threading.Barrier(2), 12
        rows = np.random.default_rng(seed).integers(-9, 9, (steps, SIZE if kind == "portable" else 3000))

        def train(worker: Any) -> Any:
            store = Store("cut", {"w": rows[0]}, consistency="asp", combine="sum", init="zeros", filters=["zlib"],
                          worker=worker)  # fmt: skip
            for row in rows:
                store.push("w", row)
            store.push("w", rows[0]).wait(DEADLINE)
            turn.wait(DEADLINE)
            out = np.empty_like(rows[0])
            store.pull("w", out).wait(DEADLINE)
            return out

        for found in made.everybody(train):
            assert np.array_equal(found, 2 * (rows.sum(0) + rows[0]))
    finally:
        made.close()
        for proxy in proxies:
            proxy.close()


@pytest.mark.parametrize("makers", [[join, join], [native_worker, join]])
def test_ranks_that_differ_hear_of_it(makers):
    made = MixedJob(makers=makers)
    try:

        def differ(worker: Any) -> str:
            with pytest.raises(MismatchError) as caught:
                store = Store("differs", {"w": np.zeros(3)}, consistency="asp", init="zeros",
                              filters=["zlib"] if worker.rank else [], worker=worker)  # fmt: skip
                while True:
                    store.push("w", np.zeros(3)).wait(DEADLINE)
            return str(caught.value)

        for text in made.everybody(differ):
            assert "filters zlib:level=1" in text and "update add" in text
    finally:
        made.close()


def test_what_cannot_be_is_refused():
    made = MixedJob(makers=[join])
    try:

        def refused(worker: Any) -> None:
            for filters, more, words in (
                (["significant:delta=1"], {}, "filter significant is of rows by key: only a KV"),
                ("zlib", {}, "is one text"),
                (["zlib", "float"], {}, "float:bytes=3 takes rows, not what zlib:level=1 makes"),
                (["gzip"], {}, "no filter 'gzip'"),
                (["zlib"], {"consistency": "hogwild"}, "with hogwild nothing is sent"),
            ):
                with pytest.raises(InvalidArgumentError, match=words):
                    Store("refused", {"x": np.zeros(3)}, filters=filters, worker=worker, **more)
            with pytest.raises(InvalidArgumentError, match="not int64"):
                Store("integers", {"x": np.zeros(3, np.int64)}, combine="sum", filters=["float"], worker=worker)

        made.everybody(refused)
    finally:
        made.close()
