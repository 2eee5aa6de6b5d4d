"""A barrier and a maximum among the ranks of a benchmark that belong to no contender: a file that all have mapped.

Ranks of a lab live in network namespaces of their own, but share the machine's files and memory.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

from byteps_like.errors import DeadlineError

_LINE = 8  # words: a cache line for each rank's counter, and one for its value
PATIENCE = 30.0


class Board:
    """One rank's view. Not thread-safe."""

    def __init__(self, folder: str, rank: int, size: int) -> None:
        path = Path(folder) / "board"
        with path.open("ab"):
            pass
        os.truncate(path, 3 * size * _LINE * 8)
        memory = np.memmap(path, np.uint64, "r+")
        part = size * _LINE
        self._counters = memory[:part:_LINE]
        self._values = memory[part : 2 * part : _LINE].view(np.float64)
        self.direct = np.asarray(memory[2 * part :])
        """The counters of `kernels.run_direct`."""
        self._rank = rank
        self._turn = 0

    def barrier(self) -> None:
        """Returns once all ranks have called it; gives up the CPU while it waits. DeadlineError after PATIENCE."""
        self._turn += 1
        self._counters[self._rank] = self._turn
        deadline = time.monotonic() + PATIENCE
        while (self._counters < self._turn).any():
            os.sched_yield()
            if time.monotonic() > deadline:
                missing = np.flatnonzero(self._counters < self._turn).tolist()
                raise DeadlineError(f"rank {self._rank} waits for ranks {missing} at barrier {self._turn}")

    def most(self, value: float) -> float:
        """The largest of all ranks' values."""
        self.barrier()  # nobody still reads the values before
        self._values[self._rank] = value
        self.barrier()
        return float(self._values.max())
