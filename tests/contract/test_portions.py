"""Work in portions over portable and native workers: each counts once, whatever slow and stuck ranks do."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("byteps_like._core", reason="the native core is not built")

from mixed_job import DEADLINE, WORLDS, MixedJob

from byteps_like.errors import InvalidArgumentError
from byteps_like.portable.join import join
from byteps_like.store.store import Store

RANKS = 3


@pytest.fixture(scope="module", params=WORLDS)
def job(request: pytest.FixtureRequest) -> Iterator[MixedJob]:
    made = MixedJob(makers=WORLDS[request.param])
    yield made
    made.close()


@pytest.mark.parametrize("count", [1, 2, 37])
@pytest.mark.parametrize("duplicate", [True, False])
def test_each_portion_counts_once_in_each_pass(job, count, duplicate):
    passes = 3

    def work(worker: Any) -> Any:
        first = {"sum": np.zeros(2, np.int64), "other": np.zeros(1, np.int64)}
        store = Store(f"portions {count} {duplicate}", first, consistency="asp", combine="sum", worker=worker)
        done, sums = [], []
        for turn in range(passes):
            for portion in store.portions(count, duplicate):
                time.sleep(0.001 * worker.rank)
                if portion.push("sum", np.array([1, portion.number + 100 * turn])) is not None:
                    portion.push("other", np.array([1]))
                    done.append((turn, portion.number))
            total = np.zeros(2, np.int64)
            store.pull("sum", total).wait(DEADLINE)
            sums.append(total)
        other = np.zeros(1, np.int64)
        store.pull("other", other).wait(DEADLINE)
        return done, sums, other

    found = job.everybody(work)
    everything = sorted(one for done, _, _ in found for one in done)
    assert everything == [(turn, number) for turn in range(passes) for number in range(count)]
    for _, sums, other in found:
        for turn, (ones, numbers) in enumerate(sums):
            least = sum(number + 100 * one for one in range(turn + 1) for number in range(count))
            assert ones >= (turn + 1) * count and numbers >= least, "a pass ends when all is there"
        assert sums[-1].tolist() == [passes * count, least] and other == passes * count


def test_what_a_stuck_rank_has_is_given_to_another_and_counts_once(job):
    stuck, over = threading.Event(), threading.Event()

    def work(worker: Any) -> list[int]:
        store = Store("stuck", {"sum": np.zeros(1, np.int64)}, consistency="asp", combine="sum", worker=worker)
        mine = []
        for turn in range(2):
            for portion in store.portions(9):
                if worker.rank == 2 and turn == 0:
                    stuck.set()
                    assert over.wait(DEADLINE)
                elif turn == 0:
                    assert stuck.wait(DEADLINE)
                if portion.push("sum", np.array([1])):
                    mine.append(portion.number)
            if worker.rank == 0 and turn == 0:
                total = np.zeros(1, np.int64)
                store.pull("sum", total).wait(DEADLINE)
                assert total == 9
                over.set()
        worker.barrier(DEADLINE)
        total = np.zeros(1, np.int64)
        store.pull("sum", total).wait(DEADLINE)
        assert total == 18
        return mine

    found = job.everybody(work)
    assert sum(map(len, found)) == 18


def test_a_portion_that_is_left_alone_is_done_by_another(job):
    """Of a rank that leaves its loop early nothing is waited for but what it has pushed."""

    def work(worker: Any) -> int:
        store = Store("left", {"sum": np.zeros(1, np.int64)}, consistency="asp", combine="sum", worker=worker)
        for portion in store.portions(6):
            if worker.rank == 1:
                break
            portion.push("sum", np.array([1]))
        worker.barrier(DEADLINE)
        total = np.zeros(1, np.int64)
        store.pull("sum", total).wait(DEADLINE)
        return int(total[0])

    assert job.everybody(work) == [6] * RANKS


def test_what_has_no_portions_is_refused():
    made = MixedJob(makers=[join])
    try:

        def refused(worker: Any) -> None:
            for count in (0, -1, True, 1.5, 1 << 20):
                store = Store(f"refused {count}", {"x": np.zeros(1)}, consistency="asp", worker=worker)
                with pytest.raises(InvalidArgumentError, match="portions"):
                    store.portions(count)
            store = Store("in step", {"x": np.zeros(1, np.int64)}, combine="sum", worker=worker)
            with pytest.raises(InvalidArgumentError, match="'in step' is bsp: portions need consistency='asp'"):
                store.portions(2)
            for function, scalars in (
                ("portions.begin", {"of_pass": 0.5}),
                ("portions.claim", {"of_pass": 1, "portion": 9}),
            ):
                with pytest.raises(InvalidArgumentError, match="portion"):
                    store.call(function, "x", **scalars)

        made.everybody(refused)
    finally:
        made.close()
