"""Matrices as two factors, over portable and native workers: servers form what ranks would have pushed; bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("byteps_like._core", reason="the native core is not built")

from byteps_like.errors import InvalidArgumentError, MismatchError
from byteps_like.portable.join import join
from byteps_like.store.store import Store
from tests.contract.mixed_job import DEADLINE, WORLDS, MixedJob, native_worker

RANKS = 3
ROWS, COLUMNS = 37, 129
PART = 4 * 1024
"""Bytes of a partition: of fp32, seven rows."""


@pytest.fixture(scope="module", params=WORLDS)
def job(request: pytest.FixtureRequest) -> Iterator[MixedJob]:
    made = MixedJob(makers=WORLDS[request.param], partition_bytes=PART)
    yield made
    made.close()


def drawn(seed: int, count: int, dtype: Any = np.float32) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return draw.normal(size=(count, ROWS)).astype(dtype), draw.normal(size=(count, COLUMNS)).astype(dtype)


def product(pair: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    return pair[0].astype(np.float64).T @ pair[1].astype(np.float64)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("combine", ["factors", "factors:combine=sum"])
def test_servers_form_the_gradient(job, dtype, whole, combine):
    """Ranks with more and fewer samples, none, and more than factors are good for; a bias goes as it is."""
    counts = (5, 200, 0)

    def train(worker: Any) -> Any:
        store = Store(f"{dtype} {whole} {combine}", {"w": np.zeros((ROWS, COLUMNS), dtype), "b": np.zeros(ROWS, dtype)},
                      combine=combine, whole=whole, worker=worker)  # fmt: skip
        assert (len(store.slices("w")) == 1) == whole
        out = np.empty((ROWS, COLUMNS), dtype), np.empty(ROWS, dtype)
        store.push_pull("w", drawn(worker.rank, counts[worker.rank], dtype), out[0]).wait(DEADLINE)
        store.push_pull("b", np.full(ROWS, worker.rank, dtype), out[1]).wait(DEADLINE)
        return out

    wanted = sum(product(drawn(rank, counts[rank], dtype)) for rank in range(RANKS))
    divisor = 1 if "sum" in combine else RANKS
    for matrix, bias in job.everybody(train):
        assert np.abs(matrix - wanted / divisor).max() <= 1e-5 * np.abs(wanted).max() / divisor
        assert np.allclose(bias, 3 / divisor)


@pytest.mark.parametrize("policy", ["asp", "k_of_n:k=2,late=next", "ssp:s=1"])
def test_weights_rates_and_policies_are_as_without(job, policy):
    def train(worker: Any) -> Any:
        stores = [
            Store(f"{policy} {combine}", {"w": np.zeros((ROWS, COLUMNS))}, consistency=policy, update="sgd:lr=1",
                  combine=combine, worker=worker)
            for combine in ("factors:combine=sum", "sum")
        ]  # fmt: skip
        futures = []
        for step in range(3):
            pair = drawn(10 * step + worker.rank, 4, np.float64)
            for store, value in zip(stores, (pair, product(pair)), strict=True):
                futures.append(store.push("w", value, weight=1 + worker.rank, lr=0.5))
        for store in stores:
            store.finish()
        for future in futures:
            future.wait(DEADLINE)
        worker.barrier(DEADLINE)
        found = [np.empty((ROWS, COLUMNS)) for _ in stores]
        for store, out in zip(stores, found, strict=True):
            store.pull("w", out).wait(DEADLINE)
        return found

    for by_factors, by_matrices in job.everybody(train):
        assert np.abs(by_factors - by_matrices).max() < 1e-9 < np.abs(by_factors).max()


def test_parts_further_dimensions_tensors_and_what_is_not_finite(job):
    torch = pytest.importorskip("torch")

    def train(worker: Any) -> Any:
        store = Store("parts", {"w": np.zeros((ROWS, COLUMNS))}, consistency="asp", combine="factors:combine=sum",
                      filters=["zlib"], worker=worker)  # fmt: skip
        left, right = drawn(7, 6)
        if worker.rank == 0:
            pair = torch.from_numpy(left).reshape(2, 3, ROWS), torch.from_numpy(right).reshape(2, 3, COLUMNS)
            store.push("w", pair, part=1).wait(DEADLINE)
            left[0, 0] = np.inf
            assert not store.push("w", (left, right), part=0).counted
        worker.barrier(DEADLINE)
        out = np.empty((ROWS, COLUMNS))
        store.pull("w", out).wait(DEADLINE)
        return out, store.slices("w")[1]

    wanted = product(drawn(7, 6)).ravel()
    for out, part in job.everybody(train):
        assert part.start % COLUMNS == part.stop % COLUMNS == 0
        assert np.abs(out.ravel()[part] - wanted[part]).max() < 1e-4
        assert np.count_nonzero(out) == part.stop - part.start


@pytest.mark.parametrize("whole", [True, False])
def test_bytes(job, whole):
    """K (M + N) numbers up, or K (M + P N) to P partitions, and M N down; besides headers, which are as many for any
    K."""
    rank, (rows, columns) = 1, (40, 100)
    stores = job.everybody(
        lambda own: Store(f"bytes {whole}", {"w": np.zeros((rows, columns), np.float32)}, consistency="asp",
                          combine="factors:combine=sum", whole=whole, worker=own)
    )  # fmt: skip
    worker, store = job.workers[rank], stores[rank]
    parts = len(store.slices("w"))
    assert parts == (1 if whole else 6)

    def sent(count: int) -> int:
        before = worker.stats()["bytes_sent"]
        pair = np.ones((count, rows), np.float32), np.ones((count, columns), np.float32)
        assert store.push("w", pair).counted
        found: int = worker.stats()["bytes_sent"] - before
        return found

    up = [4 * count * (rows + parts * columns) for count in (1, 2, 3)]
    headers = [sent(count) - nbytes for count, nbytes in zip((1, 2, 3), up, strict=True)]
    assert headers == [headers[0]] * 3 and 0 < headers[0] < 200 * parts
    before, out = worker.stats()["bytes_received"], np.empty((rows, columns), np.float32)
    store.pull("w", out).wait(DEADLINE)
    assert 0 < worker.stats()["bytes_received"] - before - 4 * rows * columns < 200 * parts
    assert (out == 6).all()


@pytest.mark.parametrize("makers", [[join, join], [native_worker, join]])
def test_ranks_that_differ_hear_of_it(makers):
    made = MixedJob(makers=makers)
    try:

        def differ(worker: Any) -> str:
            with pytest.raises(MismatchError) as caught:
                store = Store("differs", {"w": np.zeros((3, 4))}, consistency="asp", init="zeros",
                              combine="factors" if worker.rank else "mean", worker=worker)  # fmt: skip
                while True:
                    store.push("w", np.zeros((3, 4))).wait(DEADLINE)
            return str(caught.value)

        for text in made.everybody(differ):
            assert "filters factors:columns=4" in text
    finally:
        made.close()


def test_what_cannot_be_is_refused():
    made = MixedJob(makers=[join])
    try:

        def refused(worker: Any) -> None:
            matrix = {"w": np.zeros((3, 4)), "b": np.zeros(3)}
            for more, words in (
                ({"combine": "factors:combine=max"}, "combine='max'"),
                ({"combine": "factors:n=3"}, "there is no n; there is combine, as in factors:combine=sum"),
                ({"combine": "factors", "codec": "int8"}, r"int:\S* takes rows, not what factors:columns=4 makes"),
                ({"combine": "factors", "consistency": "hogwild"}, "with hogwild nothing is sent"),
            ):
                with pytest.raises(InvalidArgumentError, match=words):
                    Store("refused", matrix, worker=worker, **more)
            with pytest.raises(InvalidArgumentError, match="integers can only be summed"):
                Store("integers", {"x": np.zeros((3, 3), np.int64)}, combine="factors:combine=sum", worker=worker)
            store = Store("shapes", matrix, combine="factors", worker=worker)
            for name, value, words in (
                ("w", (np.zeros((5, 4)), np.zeros((5, 3))), r"shapes \[K, 3\] and \[K, 4\], not \[5, 4\], \[5, 3\]"),
                ("w", (np.zeros((5, 3)), np.zeros((6, 4))), r"not \[5, 3\], \[6, 4\]"),
                ("w", (np.zeros((5, 3)),), r"not \[5, 3\]"),
                ("w", np.zeros((4, 3)), r"has the shape \[3, 4\], not \[4, 3\]"),
                ("b", (np.zeros((5, 3)), np.zeros((5, 1))), "takes one array: two factors are for matrices"),
            ):
                with pytest.raises(InvalidArgumentError, match=words):
                    store.push(name, value)
            plain = Store("plain", matrix, worker=worker)
            with pytest.raises(InvalidArgumentError, match="combine='factors'"):
                plain.push("w", (np.zeros((5, 3)), np.zeros((5, 4))))

        made.everybody(refused)
    finally:
        made.close()
