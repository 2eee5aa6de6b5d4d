"""Host groups of the native core, two ranks as two threads, against NumPy."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from byteps_like import _core
from byteps_like.collectives.communicator import Communicator
from byteps_like.collectives.schedules.schedule import Kind
from byteps_like.dtypes import DType, Op
from byteps_like.errors import MismatchError, PeerLostError, ShutdownError, from_code
from tests.fault.worlds import Threads

RANKS = 2
FLOAT32, SUM = 0, 0
ALL_REDUCE, ALL_GATHER, ALL_TO_ALL, BARRIER = 0, 2, 7, 8


def communicators() -> list[_core.Communicator]:
    """A world of two ranks in this process, over shared memory."""
    made = [
        _core.Communicator("job", b"s" * 32, [f"shm://host-{os.getpid()}-{os.urandom(4).hex()}"], 5.0)
        for _ in range(RANKS)
    ]
    peers = [(one.urls, "here", f"rank {rank}", rank + 1) for rank, one in enumerate(made)]
    for rank, one in enumerate(made):
        one.set_world(bytes(16), 1, rank, peers)
    return made


def run(body: Callable[[int, _core.Communicator], None]) -> None:
    """Runs `body(rank, communicator)` on a thread for each rank; raises what the first of them raised."""
    world = communicators()
    with ThreadPoolExecutor(RANKS) as threads:
        ranks = [threads.submit(body, rank, one) for rank, one in enumerate(world)]
        for rank in ranks:
            rank.result(60)
    for one in world:
        one.close()


def run_plan(plan: _core.HostPlan, address: int) -> None:
    """In place; blocks, and raises what it failed with."""
    failed = plan.run(address, address, 20.0)
    if failed is not None:
        raise from_code(*failed)


def all_reduce(group: _core.HostGroup, address: int, nbytes: int) -> None:
    """In place, of float32; blocks."""
    plan = _core.HostPlan(group, ALL_REDUCE, FLOAT32, SUM, 1, 0, nbytes, True, True, [], [])
    run_plan(plan, address)


def test_all_reduce_private_and_allocated() -> None:
    def body(rank: int, communicator: _core.Communicator) -> None:
        group = _core.HostGroup(communicator, 7, [0, 1], 20.0)
        private = np.arange(50_000, dtype=np.float32) + rank
        buffer = communicator.allocate(private.nbytes)
        for address in (private.ctypes.data, buffer.address):
            if address != private.ctypes.data:
                _copy(address, np.arange(50_000, dtype=np.float32) + rank)
            all_reduce(group, address, private.nbytes)
            assert np.array_equal(_view(address, 50_000), 2 * np.arange(50_000, dtype=np.float32) + 1)

    run(body)


def test_launch_with_sections_tells_its_queue() -> None:
    def body(rank: int, communicator: _core.Communicator) -> None:
        group = _core.HostGroup(communicator, 7, [1, 0], 20.0)
        mine = np.full(3, rank, dtype=np.float32)
        out = np.zeros(6, dtype=np.float32)
        plan = _core.HostPlan(group, ALL_GATHER, FLOAT32, SUM, 1, 0, 12, True, True, [], [(0, 12), (12, 12)])
        call = plan.launch(mine.ctypes.data, out.ctypes.data, 20.0)
        call.notify(communicator, 5)
        assert communicator.next_completed(20.0) == 5
        assert call.failed() is None
        assert out.tolist() == [1, 1, 1, 0, 0, 0]

    run(body)


@pytest.mark.parametrize("each", [5, 300_000])
def test_all_to_all_in_place_of_memory_that_others_map(each: int) -> None:
    def body(rank: int, communicator: _core.Communicator) -> None:
        group = _core.HostGroup(communicator, 7, [0, 1], 20.0)
        buffer = communicator.allocate(8 * each)
        sections = [(0, 4 * each), (4 * each, 4 * each)]
        plan = _core.HostPlan(group, ALL_TO_ALL, FLOAT32, SUM, 1, 0, 0, True, True, sections, sections)
        for _ in range(3):
            _copy(buffer.address, np.repeat(np.arange(2, dtype=np.float32) + 10 * rank, each))
            run_plan(plan, buffer.address)
            assert np.array_equal(_view(buffer.address, 2 * each), np.repeat(np.array([0, 10]) + rank, each))

    run(body)


def test_errors_are_typed_and_name_both_calls() -> None:
    def body(rank: int, communicator: _core.Communicator) -> None:
        group = _core.HostGroup(communicator, 7, [0, 1], 20.0)
        tensor = np.zeros(8, dtype=np.float32)
        with pytest.raises(MismatchError, match=r"float32\[4\].*float32\[8\]|float32\[8\].*float32\[4\]"):
            all_reduce(group, tensor.ctypes.data, 16 + 16 * rank)
        run_plan(_core.HostPlan(group, BARRIER, FLOAT32, SUM, 1, 0, 0, False, False, [], []), 0)
        if rank == 0:
            communicator.fail(PeerLostError.code, "rank 9 is lost")
        with pytest.raises(PeerLostError, match="rank 9 is lost"):
            all_reduce(group, tensor.ctypes.data, 16)

    run(body)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Python's own handler: runners of several processes make theirs ignore the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_gives_a_call_up_on_all_ranks() -> None:
    world = communicators()
    tensor = np.zeros(8, dtype=np.float32)

    def other() -> tuple[int, str] | None:
        group = _core.HostGroup(world[1], 7, [0, 1], 20.0)
        entered.set()
        interrupted.wait(20.0)
        mine = np.zeros(8, dtype=np.float32)
        plan = _core.HostPlan(group, ALL_REDUCE, FLOAT32, SUM, 1, 0, mine.nbytes, True, True, [], [])
        return plan.run(mine.ctypes.data, mine.ctypes.data, 20.0)

    entered, interrupted = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as threads:
        peer = threads.submit(other)
        group = _core.HostGroup(world[0], 7, [0, 1], 20.0)
        assert entered.wait(20.0)
        threading.Timer(0.2, signal.raise_signal, [signal.SIGINT]).start()
        with pytest.raises(KeyboardInterrupt):
            all_reduce(group, tensor.ctypes.data, tensor.nbytes)
        interrupted.set()
        assert peer.result(20.0) == (ShutdownError.code, "interrupted on one rank")
    for one in world:
        one.close()


def _view(address: int, count: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))


def _copy(address: int, values: np.ndarray) -> None:
    _view(address, values.size)[:] = values


@pytest.mark.parametrize(
    ("room", "why"),
    [
        (2, "  shared: 3 ranks are on this host, and its shared memory has room for 2"),
        (3, "because all ranks share one host's memory"),
    ],
)
def test_more_ranks_than_a_hosts_memory_has_room_for_use_links(
    monkeypatch: pytest.MonkeyPatch, room: int, why: str
) -> None:
    assert _core.MOST_HOST_RANKS == 128
    monkeypatch.setattr(_core, "MOST_HOST_RANKS", room)

    def body(communicator: Communicator) -> tuple[float, str]:
        group = communicator.group("all")
        values = np.full(1000, communicator.rank + 1.0, np.float32)
        group.all_reduce(values.ctypes.data, values.ctypes.data, 1000, DType.FLOAT32, Op.SUM).wait(20.0)
        return float(values[999]), group.explain(Kind.ALL_REDUCE, 1000, DType.FLOAT32)

    with Threads(3, "shm") as world:
        for total, told in world.run(body):
            assert total == 6.0
            assert why in told.splitlines()
