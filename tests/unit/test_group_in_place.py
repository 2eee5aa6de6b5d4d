"""Calls whose source is their target, by schedules that have to copy it first and in memory that others map."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from byteps_like import _core
from byteps_like.collectives.api import CallOptions
from byteps_like.collectives.group import NativeGroup
from byteps_like.collectives.operation import Notifier
from byteps_like.collectives.schedule import Layout
from byteps_like.collectives.selector import Selector
from byteps_like.dtypes import DType

RANKS = (0, 1)


@pytest.mark.parametrize("algorithm", ["", "direct", "pairwise"])
def test_all_to_all_of_arrays_that_lie_apart(algorithm: str) -> None:
    made = [
        _core.Communicator("job", b"s" * 32, [f"shm://place-{os.getpid()}-{os.urandom(4).hex()}"], 5.0) for _ in RANKS
    ]

    def body(rank: int) -> None:
        core = made[rank]
        core.set_world(1, rank, [(one.urls, "here", f"rank {number}") for number, one in enumerate(made)])
        notifier = Notifier(core)
        group = NativeGroup(core, notifier, Selector(), "g", 7, RANKS, rank, Layout((0, 0)), True, 20.0)
        room = np.full((5, 30_000), -1.0, np.float32)
        parts = [room[3], room[1]]  # neither in order nor one behind the other
        for peer, part in enumerate(parts):
            part[:] = 10 * rank + peer
        addresses = [part.ctypes.data for part in parts]
        options = CallOptions(algorithm=algorithm)
        group.all_to_all(addresses, addresses, 30_000, 30_000, DType.FLOAT32, options).wait(20.0)
        assert [set(part) for part in parts] == [{float(rank)}, {float(10 + rank)}]
        assert set(room[[0, 2, 4]].ravel()) == {-1.0}
        group.barrier().wait(20.0)

    with ThreadPoolExecutor(len(RANKS)) as threads:
        for running in [threads.submit(body, rank) for rank in RANKS]:
            running.result(60)
    for core in made:
        core.close()
