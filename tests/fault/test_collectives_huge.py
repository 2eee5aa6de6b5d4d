"""A tensor of more than 4 GiB, of which offsets and lengths don't fit into 32 bits."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np
import psutil
import pytest

pytest.importorskip("byteps_like._core", reason="the native core is not built")

from byteps_like.collectives.api import CallOptions
from byteps_like.dtypes import DType, Op
from tests.fault.worlds import Forked

BYTES = (1 << 32) + (1 << 20) + 12_345
NEEDED = 12 << 30  # bytes of memory: two tensors and what lies between them
MIDDLES = (1, BYTES // 2, 1 << 31, 1 << 32, BYTES - 2)
MARKS = sorted({place + offset for place in MIDDLES for offset in (-1, 0, 1)})
BLOCK = 1 << 26
SECONDS = 100.0  # a tenth of that, where nothing else runs


def _zeros(communicator: Any, shared: bool) -> tuple[Any, np.ndarray]:
    """BYTES of them, and what owns them."""
    if shared:
        region = communicator.empty_shared(BYTES)
        return region, np.ctypeslib.as_array((ctypes.c_uint8 * BYTES).from_address(region.address))
    memory = mmap.mmap(-1, BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)  # most of the time goes into the pages
    return memory, np.frombuffer(memory, np.uint8)


def _reduce(communicator: Any, algorithm: str, op: Op, shared: bool) -> tuple[list[int], int]:
    """In place, of zeros with numbers at the marks: what is there afterwards, and how many others are not zero."""
    owner, values = _zeros(communicator, shared)
    values[MARKS] = np.arange(len(MARKS)) + 100 * communicator.rank
    group, place = communicator.group("all"), values.ctypes.data
    options = CallOptions(algorithm=algorithm, timeout=SECONDS)
    group.all_reduce(place, place, BYTES, DType.UINT8, op, options).wait()
    found = values[MARKS].tolist()
    values[MARKS] = 0
    wrong = sum(int(np.count_nonzero(values[begin : begin + BLOCK])) for begin in range(0, BYTES, BLOCK))
    assert owner is not None  # kept until here
    return found, wrong


@pytest.mark.slow
@pytest.mark.skipif(psutil.virtual_memory().available < NEEDED, reason="less than 12 GiB of memory are free")
@pytest.mark.parametrize(
    ("transport", "algorithm", "op", "shared"),
    [
        ("shm", "shared", Op.MAX, False),
        ("shm", "shared", Op.SUM, True),
        ("tcp", "recursive_doubling", Op.MAX, False),  # by messages of all of it
    ],
)
def test_every_byte_is_in_its_place(transport: str, algorithm: str, op: Op, shared: bool) -> None:
    numbers = np.arange(len(MARKS))
    wanted = 2 * numbers + 100 if op is Op.SUM else numbers + 100
    with Forked(2, transport) as world:
        world.begin(_reduce, algorithm, op, shared)
        assert [world.answer(rank, SECONDS) for rank in range(2)] == [(True, (wanted.tolist(), 0))] * 2
