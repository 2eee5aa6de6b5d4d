"""Stores whose contributions go through filters, over portable and native workers: what arrives, in how many bytes,
over links that are cut, too; and ranks that differ."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("byteps_like._core", reason="the native core is not built")

from byteps_like.errors import InvalidArgumentError, MismatchError
from byteps_like.portable.join import join
from byteps_like.store.store import Store
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
        assert 0 < np.abs(found - values).max() < 1.1 * step
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
