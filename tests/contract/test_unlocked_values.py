"""Hogwild: values in memory that ranks share, over workers of all kinds, with servers and without; what it refuses."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("byteps_like._core", reason="the native core is not built")

from mixed_job import DEADLINE, WORLDS, MixedJob

from byteps_like.errors import InvalidArgumentError, SystemCallError
from byteps_like.store.memory import mapped
from byteps_like.store.store import Store
from byteps_like.worker.local import LocalWorker

RANKS = 3
EACH = 40_001


@pytest.fixture(scope="module", params=WORLDS)
def job(request: pytest.FixtureRequest) -> Iterator[MixedJob]:
    made = MixedJob(makers=WORLDS[request.param], partition_bytes=64 << 10)
    yield made
    made.close()


def hogwild(worker: Any, name: str, value: Any, **terms: Any) -> Store:
    given = value if worker.rank == 0 else np.zeros_like(value)
    return Store(name, {"w": given}, consistency="hogwild", worker=worker, **terms)


@pytest.mark.parametrize("update", ["add", "sgd:lr=0.5"])
@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_contributions_one_after_the_other_are_exact(job, update, kind):
    first = np.arange(RANKS * EACH, dtype=kind).reshape(RANKS, EACH)
    sign = -1 if "sgd" in update else 1

    def train(worker: Any) -> np.ndarray:
        store = hogwild(worker, f"turns {update} {kind}", first, update=update)
        gradient = np.full_like(first, 2 << worker.rank)
        for turn in range(RANKS):
            if turn == worker.rank:
                future = store.push("w", gradient, weight=8.0, **({"lr": 0.25} if sign < 0 else {}))
                future.wait(DEADLINE)
                assert (future.version, future.age, future.counted) == (turn + 1, turn, True)
            worker.barrier()
        out = np.empty_like(first)
        assert store.pull("w", out).version == RANKS
        assert store.versions("w") == (RANKS,) * len(store.slices("w")) and len(store.slices("w")) > 1
        assert np.array_equal(store.view("w"), out)
        return out

    for found in job.everybody(train):
        assert np.array_equal(found, first + sign * (0.25 if sign < 0 else 1) * (2 + 4 + 8))


def test_parts_that_only_one_rank_changes_lose_nothing_while_all_push(job):
    rounds = 30

    def train(worker: Any) -> np.ndarray:
        store = hogwild(worker, "beside", np.zeros(RANKS * EACH, np.int64), combine="sum")
        own = [part for part in range(len(store.slices("w"))) if part % RANKS == worker.rank]
        for _ in range(rounds):
            for part in own:
                store.push("w", np.full(RANKS * EACH, worker.rank + 1), part=part, weight=2).wait(DEADLINE)
        worker.barrier()
        return store.view("w").copy()

    for found in job.everybody(train):
        slices = job.workers[0].declare([])  # nothing new: all parts are known
        assert slices == []
        assert set(np.unique(found)) <= {2 * rounds * (rank + 1) for rank in range(RANKS)}
        assert (found > 0).all()


def test_a_view_is_the_value_of_all_ranks(job):
    shown = threading.Barrier(RANKS, timeout=DEADLINE)

    def train(worker: Any) -> list[float]:
        view = hogwild(worker, "seen", np.zeros((RANKS, 3))).view("w")
        view[worker.rank] = worker.rank + 1
        shown.wait()
        found = view.sum(axis=1).tolist()
        shown.wait()
        return found

    assert job.everybody(train) == [[3.0, 6.0, 9.0]] * RANKS


def test_what_is_not_finite_is_left_out(job):
    def train(worker: Any) -> Any:
        store = hogwild(worker, "finite", np.ones(5))
        future = store.push("w", np.array([0, 0, np.nan, 0, 0]))
        worker.barrier()
        return future.counted, future.version, store.view("w").tolist()

    assert job.everybody(train) == [(False, 0, [1.0] * 5)] * RANKS


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"update": "adam"}, "add and sgd, not adam"),
    ({"age": "inverse"}, "without age and damp"),
    ({"damp": "exp"}, "without age and damp"),
]


@pytest.mark.parametrize(("terms", "why"), REFUSED)
def test_what_needs_more_than_one_write_is_refused(job, terms, why):
    def train(worker: Any) -> None:
        with pytest.raises(InvalidArgumentError, match=why):
            hogwild(worker, f"refused {terms}", np.zeros(4), **terms)

    job.everybody(train)


def test_it_stays_hogwild_and_others_don_t_become_it(job):
    def train(worker: Any) -> None:
        store = hogwild(worker, "stays", np.zeros(4))
        with pytest.raises(InvalidArgumentError, match="hogwild can't become ssp:s=1"):
            store.change("ssp:s=1")
        with pytest.raises(InvalidArgumentError, match="no server has 'store/stays/w'"):
            store.call("scale", "w", a=2)
        for handle in store.start_finish():
            handle.wait(DEADLINE)
        kept = Store("kept", {"w": np.zeros(4)}, worker=worker)
        with pytest.raises(InvalidArgumentError, match="bsp can't become hogwild"):
            kept.change("hogwild")
        with pytest.raises(InvalidArgumentError, match="servers keep 'w'"):
            kept.view("w")
        with pytest.raises(InvalidArgumentError, match="version=7"):
            store.pull("w", np.zeros(4), version=7)

    job.everybody(train)


def test_ranks_that_can_t_map_it_are_named_on_all(job, monkeypatch):
    made = mapped._made
    elsewhere = 1 << 22  # above all numbers of processes
    monkeypatch.setattr(mapped, "_made", lambda *arguments: (elsewhere, *made(*arguments)[1:]))

    def train(worker: Any) -> None:
        with pytest.raises(InvalidArgumentError, match="but ranks 0, 1, 2 can't map that of rank 0"):
            hogwild(worker, "elsewhere", np.zeros(4))

    job.everybody(train)


def test_want_of_memory_is_told_on_all_ranks_and_nothing_is_left_open(job, monkeypatch):
    def full(descriptor: int, offset: int, count: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(mapped.os, "posix_fallocate", full)

    def train(worker: Any) -> None:
        with pytest.raises(SystemCallError, match="which rank 0 could not get: No space left"):
            hogwild(worker, "full", np.zeros(4))

    job.everybody(train)
    links = [path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    assert links and not any("byteps_like_common" in str(link) for link in links)


def test_a_rank_alone_has_it_too():
    store = hogwild(LocalWorker(), "alone", np.ones(3, np.float32), update="sgd:lr=1")
    store.push("w", np.array([1, 2, 3], np.float32)).wait(DEADLINE)
    assert store.view("w").tolist() == [0, -1, -2]
