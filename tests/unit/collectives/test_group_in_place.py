"""Calls whose source is their target, by schedules that have to copy it first and in memory that others map."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from byteps_like import _core
from byteps_like.collectives.api import CallOptions
from byteps_like.collectives.group import NativeGroup
from byteps_like.collectives.operation import ENDED, Notifier
from byteps_like.collectives.schedules.schedule import Layout
from byteps_like.collectives.selection.selector import Selector
from byteps_like.dtypes import DType, Op

RANKS = (0, 1)
MANY = 3_000_000


def in_a_world(body: Callable[[int, NativeGroup, Any], None]) -> None:
    """Runs `body(rank, group, core)` on two ranks, threads that share memory."""
    made = [
        _core.Communicator("job", b"s" * 32, [f"shm://place-{os.getpid()}-{os.urandom(4).hex()}"], 5.0) for _ in RANKS
    ]

    def run(rank: int) -> None:
        core = made[rank]
        peers = [(one.urls, "here", f"rank {number}", number + 1) for number, one in enumerate(made)]
        core.set_world(bytes(16), 1, rank, peers)
        notifier = Notifier(core)
        group = NativeGroup(core, notifier, Selector(), "g", 7, RANKS, rank, Layout((0, 0)), "", 20.0, print)
        body(rank, group, core)
        group.barrier().wait(20.0)
        core.close()
        notifier.close()

    with ThreadPoolExecutor(len(RANKS)) as threads:
        for running in [threads.submit(run, rank) for rank in RANKS]:
            running.result(60)


@pytest.mark.parametrize("algorithm", ["", "direct", "pairwise"])
def test_all_to_all_of_arrays_that_lie_apart(algorithm: str) -> None:
    def body(rank: int, group: NativeGroup, _: Any) -> None:
        room = np.full((5, 30_000), -1.0, np.float32)
        parts = [room[3], room[1]]  # neither in order nor one behind the other
        for peer, part in enumerate(parts):
            part[:] = 10 * rank + peer
        addresses = [part.ctypes.data for part in parts]
        options = CallOptions(algorithm=algorithm)
        group.all_to_all(addresses, addresses, 30_000, 30_000, DType.FLOAT32, options).wait(20.0)
        assert [set(part) for part in parts] == [{float(rank)}, {float(10 + rank)}]
        assert set(room[[0, 2, 4]].ravel()) == {-1.0}

    in_a_world(body)


@pytest.mark.parametrize("algorithm", ["", "direct", "pairwise"])
def test_uneven_all_to_all_whose_parts_move(algorithm: str) -> None:
    sends = [[10, 1_500_000], [100_000, 1_000_000]]

    def body(rank: int, group: NativeGroup, core: Any) -> None:
        gets = [sends[0][rank], sends[1][rank]]
        memory = core.allocate(MANY * 4)
        room = np.ctypeslib.as_array((ctypes.c_float * MANY).from_address(memory.address))
        room[: sum(sends[rank])] = np.concatenate(
            [np.arange(count) % 1000 + 1e6 * (2 * rank + to) for to, count in enumerate(sends[rank])]
        )
        options = CallOptions(algorithm=algorithm)
        where = room.ctypes.data
        group.all_to_all(where, where, sends[rank], gets, DType.FLOAT32, options).wait(20.0)
        expected = [np.arange(count) % 1000 + 1e6 * (2 * sender + rank) for sender, count in enumerate(gets)]
        np.testing.assert_array_equal(room[: sum(gets)], np.concatenate(expected).astype(np.float32))

    in_a_world(body)


def test_calls_that_differ_in_when_and_how_urgent_share_a_plan() -> None:
    def body(rank: int, group: NativeGroup, _: Any) -> None:
        data = np.ones(4, np.float32)
        made = []
        make = group._planner.make
        group._planner.make = lambda *given: made.append(given) or make(*given)  # type: ignore[method-assign]
        for number in range(5):
            options = CallOptions(timeout=20.0 + number, priority=number, waits=number % 2 == 0)
            group.all_reduce(data.ctypes.data, data.ctypes.data, 4, DType.FLOAT32, Op.SUM, options).wait(20.0)
        assert len(made) == 1 and set(data) == {2.0**5}

    in_a_world(body)


def test_lists_of_arrays_run_at_once_where_the_caller_waits() -> None:
    def body(rank: int, group: NativeGroup, _: Any) -> None:
        room = np.full((4, 5), -1.0, np.float32)
        mine = np.full(5, float(rank), np.float32)
        targets = [room[2].ctypes.data, room[0].ctypes.data]
        operation = group.all_gather(mine.ctypes.data, targets, [5, 5], DType.FLOAT32, CallOptions(waits=True))
        assert operation is ENDED
        assert [set(row) for row in room] == [{1.0}, {-1.0}, {0.0}, {-1.0}]

    in_a_world(body)
