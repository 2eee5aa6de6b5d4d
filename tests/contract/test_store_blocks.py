"""Blocks of contributions, over portable and native workers, and native servers: who is cut off, what becomes of its
blocks, in how many bytes; and DistributedOptimizer.block()."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("byteps_like._core", reason="the native core is not built")

from mixed_job import DEADLINE, WORLDS, MixedJob

from byteps_like.errors import InvalidArgumentError
from byteps_like.store.gradient_coding import GradientCoding
from byteps_like.store.store import Store
from byteps_like.wire.note import NOTE_BYTES

RANKS, BEHIND = 3, 2
"""The last rank is behind the others."""
LGC = "k_of_n:k=2,grace=60,late=next"
PARTITION = 4096
FIRST = np.zeros(3000, np.float32)
"""Several partitions."""


@pytest.fixture(scope="module", params=WORLDS)
def job(request: pytest.FixtureRequest) -> Iterator[MixedJob]:
    made = MixedJob(makers=WORLDS[request.param], partition_bytes=PARTITION)
    yield made
    made.close()


def until(found: Callable[[], Any], wanted: Any) -> None:
    """Blocks until that is found."""
    end = time.monotonic() + DEADLINE
    while (last := found()) != wanted:
        assert time.monotonic() < end, last
        time.sleep(0.001)


def pulled(store: Store) -> np.ndarray:
    out = np.empty_like(FIRST)
    store.pull("w", out).wait(DEADLINE)
    return out


def test_what_is_finished_is_in_the_version_that_is_open_and_the_rest_in_the_next(job):
    turn = threading.Barrier(RANKS)

    def train(worker: Any) -> Any:
        store = Store("two versions", {"w": FIRST}, consistency=LGC, combine="sum", worker=worker)
        parts = tuple(range(len(store.slices("w"))))
        before, bytes_of = worker.stats()["payload_sent"], FIRST.nbytes + NOTE_BYTES * len(parts)
        assert len(parts) > 2 and store.cut_off("w") == ()
        turn.wait(DEADLINE)
        if worker.rank == BEHIND:
            until(lambda: store.cut_off("w"), parts)
            block = store.push("w", FIRST + 4, weight=2.0, last=False)
        else:
            block = store.push("w", FIRST + 1 + worker.rank)
        block.wait(DEADLINE)
        assert (block.version, block.contributors) == (1, (0, 1, 2))
        if worker.rank != 1:  # of which the others may not have waited any more by then
            assert store.cut_off("w") == ()
        first = pulled(store)
        if worker.rank == BEHIND:
            rest = store.push("w", FIRST + 8, base=0)
            rest.wait(DEADLINE)
            assert (rest.version, rest.age) == (2, 1)
        else:
            if worker.rank == 1:
                until(lambda: store.cut_off("w"), parts)  # the rest counts as one that has finished
            store.push("w", FIRST + 10 * (1 + worker.rank)).wait(DEADLINE)
        turn.wait(DEADLINE)
        assert worker.stats()["payload_sent"] - before == 2 * bytes_of
        return first, pulled(store)

    for first, second in job.everybody(train):
        assert np.all(first == 1 + 2 + 2 * 4) and np.all(second == first + 10 + 20 + 8)


def test_only_the_partitions_that_are_cut_off_say_so(job):
    turn = threading.Barrier(RANKS)

    def train(worker: Any) -> None:
        store = Store("some parts", {"w": FIRST}, consistency=LGC, worker=worker)
        turn.wait(DEADLINE)
        if worker.rank != BEHIND:
            pushes = [store.push("w", FIRST + 1, part=part) for part in (0, 2)]
        else:
            until(lambda: store.cut_off("w"), (0, 2))
            pushes = [store.push("w", FIRST + 3, part=0, last=False)]
            until(lambda: store.cut_off("w"), (2,))
            pushes.append(store.push("w", FIRST + 3, part=2))
        for push in pushes:
            push.wait(DEADLINE)
            assert push.version == 1
        turn.wait(DEADLINE)
        store.finish()
        found = pulled(store)
        assert np.allclose(found[store.slices("w")[0]], 5 / 3) and np.all(found[store.slices("w")[1]] == 0)

    job.everybody(train)


def test_under_bsp_all_blocks_of_all_ranks_are_in_one_version(job):
    def train(worker: Any) -> np.ndarray:
        store = Store("all blocks", {"w": FIRST}, consistency="bsp", combine="sum", worker=worker)
        for step in range(2):
            blocks = [store.push("w", FIRST + 1, last=block == worker.rank) for block in range(1 + worker.rank)]
            found = pulled(store)
            assert {push.version for push in blocks} == {step + 1} and blocks[-1].contributors == (0, 1, 2)
        return found

    assert all(np.all(found == 2 * (1 + 2 + 3)) for found in job.everybody(train))


def test_a_coded_gradient_has_no_blocks(job):
    def train(worker: Any) -> None:
        coding = GradientCoding(RANKS, s=1)
        store = Store("coded blocks", {"w": FIRST}, worker=worker, **coding.options)
        with pytest.raises(InvalidArgumentError, match="can't be decoded"):
            store.push("w", FIRST, last=False)

    job.everybody(train)
