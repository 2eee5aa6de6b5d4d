"""Reductions among the GPUs of a host's processes, over the software libcuda: bits, and the death of one of them.

What fails within one process is tested natively (tests/native/gpu/gpu_peers_test.cc).
"""

from __future__ import annotations

import contextlib
import multiprocessing
import time

import numpy as np
import pytest

from byteps_like.dtypes import DType
from tests.fakes import gpu_peers
from tests.fakes.software_driver import DRIVER, needs_software_driver

DEADLINE = 30.0


class Processes:
    """Ranks of a host, each at the end of a pipe."""

    def __init__(self, size, body):
        spawn = multiprocessing.get_context("spawn")
        self.pipes, self.processes = [], []
        for rank in range(size):
            near, far = spawn.Pipe()
            process = spawn.Process(target=body, args=(far, rank, size, str(DRIVER)), daemon=True)
            process.start()
            far.close()
            self.pipes.append(near)
            self.processes.append(process)
        for _ in ("pages", "stages"):
            self.tell(self.hear())

    def hear(self, ranks=None):
        """What each has to say."""
        found = []
        for rank in range(len(self.pipes)) if ranks is None else ranks:
            assert self.pipes[rank].poll(DEADLINE), f"rank {rank} says nothing"
            found.append(self.pipes[rank].recv())
        return found

    def tell(self, item):
        for pipe in self.pipes:
            pipe.send(item)

    def end(self):
        for process in self.processes:
            process.join(DEADLINE)
            assert not process.is_alive(), "a rank hangs"


@contextlib.contextmanager
def processes(size, body):
    made = Processes(size, body)
    try:
        yield made
        made.end()
    finally:
        for process in made.processes:
            process.kill()


def expected(size, numel, dtype, divisor):
    """fp32 sums in the order of ranks, rounded once."""
    total = np.zeros(numel, np.float32)
    for rank in range(size):
        found = gpu_peers.values(rank, numel, dtype)
        if dtype is DType.BFLOAT16:
            found = (found.astype(np.uint32) << 16).view(np.float32)
        total = found.astype(np.float32) if rank == 0 else total + found.astype(np.float32)
    total = total / np.float32(divisor)
    if dtype is DType.FLOAT16:
        return total.astype(np.float16).tobytes()
    if dtype is DType.BFLOAT16:
        bits = total.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).tobytes()
    return total.tobytes()


@needs_software_driver
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.processes
def test_sums_are_those_of_numpy_bit_for_bit(size):
    wanted = [expected(size, *case) for case in gpu_peers.CASES]
    with processes(size, gpu_peers.sums) as ranks:
        assert ranks.hear() == [wanted] * size
        ranks.tell("leave")
        assert ranks.hear() == [(0, 0, "")] * size


@needs_software_driver
@pytest.mark.processes
def test_a_killed_rank_holds_nobody_and_leaves_nothing():
    with processes(3, gpu_peers.death) as ranks:
        assert ranks.hear() == ["ready"] * 3
        pid, began = ranks.processes[2].pid, time.monotonic()
        ranks.tell("go on")
        for error, left in ranks.hear([0, 1]):
            died = f"PeerLostError: local rank 2 (pid {pid}) has died"
            assert error.startswith((died, "PeerLostError: local rank")), error
            assert left == (0, 0, "")
        assert time.monotonic() - began < 10
