"""Groups that share ranks, launched in another order by each rank: 1,000 random schedules, none of which deadlocks."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("byteps_like._core", reason="the native core is not built")

from byteps_like.collectives.api import CallOptions
from byteps_like.dtypes import DType, Op
from tests.fault.worlds import Forked

SCHEDULES = 1000
OPTIONS = CallOptions(timeout=20.0)
GROUPS = {2: [(0, 1, 2), (0, 1)], 3: [(0, 1, 2), (2, 0, 1), (1, 2)]}
"""Two or three groups of three ranks that share at least two."""


def _launch(group: Any, number: int) -> tuple[Any, np.ndarray, np.ndarray]:
    """Call `number` of a group, its buffer, and what it must hold then."""
    count = (1, 16, 700, 40_000)[number % 4] if number % 8 < 7 else 1
    ranks = np.arange(group.size, dtype=np.float32)
    if number % 3 == 2:
        data = np.full(count, float(group.rank + number), np.float32)
        root = number % group.size
        return group.broadcast(data.ctypes.data, count, DType.FLOAT32, root, OPTIONS), data, np.float32(root + number)
    data = np.full(count, float(group.rank + number), np.float32)
    address = data.ctypes.data
    wanted = np.float32((ranks + number).sum())
    return group.all_reduce(address, address, count, DType.FLOAT32, Op.SUM, OPTIONS), data, wanted


def schedules(communicator: Any, lanes: int, first: int, last: int) -> int:
    """Each schedule: a few calls of each group, whose order among the groups is this rank's own."""
    groups = [
        communicator.group(f"{lanes}/{number}", ranks)
        for number, ranks in enumerate(GROUPS[lanes])
        if communicator.rank in ranks
    ]
    calls = [0] * len(groups)
    for schedule in range(first, last):
        own = random.Random(schedule * 8 + communicator.rank)
        order = [which for which in range(len(groups)) for _ in range(1 + schedule % 3)]
        own.shuffle(order)
        flights = []
        for which in order:
            flights.append((which, calls[which], _launch(groups[which], calls[which])))
            calls[which] += 1
        own.shuffle(flights)
        for which, number, (operation, data, wanted) in flights:
            operation.wait()
            assert (data == wanted).all(), f"schedule {schedule}, group {which}, call {number}: {data[0]}, not {wanted}"
    return sum(calls)


@pytest.mark.parametrize("lanes", [2, 3])
@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_no_order_of_launches_deadlocks(transport: str, lanes: int) -> None:
    with Forked(3, transport) as world:
        done = world.run(schedules, lanes, 0, SCHEDULES)
    assert min(done) >= SCHEDULES * (lanes - 1)
