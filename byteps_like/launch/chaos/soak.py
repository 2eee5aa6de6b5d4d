"""The job that `byteps-like chaos` disturbs if no other is named: sums whose every element is known, by NumPy alone.

In each step a worker adds up some arrays with the others, looks at each element of the results, and then tells them, in
a sum in which each has a row of its own, how far it is, what it has got, and whether it has heard of changes. That is a
commit: all have done the step who are still there. After a loss, or when anybody has heard of a change, a worker joins
the next world, and goes on from rank 0's step.

What rank r adds to element i in step s is w(i, s) 4^r: the sum says by its digits who is in it, and how often.
"""

from __future__ import annotations

import logging
import time
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from byteps_like.config import Config
from byteps_like.control.calls.returning import returning
from byteps_like.dtypes import DType, Op
from byteps_like.errors import PeerLostError
from byteps_like.worker.api import Declared, HearsOfChanges, TensorSpec, Worker
from byteps_like.worker.session import connect

log = logging.getLogger(__name__)

MOST_WORKERS = 10
"""More digits are more than a float32 has."""
SIZES = (1_000, 50_000)
"""Elements of the arrays: a small one, and one of several partitions"""
PARTITION_BYTES = 1 << 15
"""of so many bytes."""
PACE = 0.01
"""Seconds for which a step does nothing, as if it computed on a GPU."""
_ATTEMPTS = 8
"""Worlds in a row that may end before this process is in them."""
_IN_TWO = 0x55555
"""The digits 0 and 1 of base 4, MOST_WORKERS of them."""
_BEYOND = np.float32(1 << 24)
"""No sum is so large."""

Numbers = npt.NDArray[np.float32]


class WrongSumError(Exception):
    """A result is not what it must be."""


def weights(size: int, step: int) -> Numbers:
    """w(i, s): small whole numbers, others in each step."""
    return ((np.arange(size) + step) % 7 + 1).astype(np.float32)


def contributors(sums: Numbers, step: int) -> npt.NDArray[np.int64]:
    """Who is in each element: bits in base 4. Raises WrongSumError if it isn't the sum of some ranks, once each."""
    by = weights(len(sums), step)
    mask = np.where(np.abs(sums) < _BEYOND, sums / by, 0).astype(np.int64)
    wrong = np.flatnonzero((mask * by != sums) | (mask & ~_IN_TWO != 0))
    if wrong.size:
        first = int(wrong[0])
        raise WrongSumError(
            f"step {step}: element {first} of {len(sums)} is {sums[first]}, which is {by[first]:g} times no sum of"
            f" ranks' shares; so are {wrong.size - 1} others"
        )
    return mask


class _Changed(Exception):
    """Nothing is wrong: all have heard that the next world has other members."""


@dataclass(frozen=True)
class _Row:
    """What a worker tells the others after a step; `there` tells it from nothing."""

    there: int
    changes: int
    step: int
    checksum: int


class Soak:
    """One worker, over all its worlds."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.step = 0
        """The last one that all have made."""

    def run(self) -> None:
        """Makes steps for ever. Raises WrongSumError, and all that does not come from the loss of another process."""
        while True:
            try:
                self._enter()
                while True:
                    self._make_step()
            except _Changed:
                log.info("step %d: others have come or gone; joining the next world", self.step)
            except PeerLostError as error:
                log.warning("step %d: %s; joining the next world", self.step, error)
            self._rejoin()

    def _enter(self) -> None:
        """All begin with rank 0's step."""
        specs = [
            TensorSpec(f"soak of {size}", DType.FLOAT32, (size,), partition_bytes=PARTITION_BYTES) for size in SIZES
        ]
        rows = TensorSpec("soak rows", DType.INT64, (self._worker.size, 4))
        *self._declared, self._rows = self._worker.declare([*specs, rows])
        first = self._exchange(_Row(1, 0, self.step, 0))[0]
        if not first.there:
            raise PeerLostError("rank 0 died before it could say how far it was", peer="worker 0")
        self.step = first.step

    def _make_step(self) -> None:
        step, rank = self.step + 1, self._worker.rank
        arrays = [weights(size, step) * np.float32(4**rank) for size in SIZES]
        flights = [self._sum(declared, array) for declared, array in zip(self._declared, arrays, strict=True)]
        time.sleep(PACE)
        for flight in flights:
            flight.wait()
        masks = [contributors(array, step) for array in arrays]
        checksum = zlib.crc32(b"".join(array.tobytes() for array in arrays))
        rows = self._exchange(_Row(1, self._changes(), step, checksum))
        self._check(step, masks, rows)
        self.step = step
        print(f"step {step}", flush=True)
        if any(row.changes for row in rows):
            raise _Changed

    def _check(self, step: int, masks: list[npt.NDArray[np.int64]], rows: list[_Row]) -> None:
        """All who have made the step are in all of its sums, all have the same sums, and nobody else is in them."""
        there = sum(row.there << 2 * rank for rank, row in enumerate(rows))
        for mask in masks:
            if (mask & there != there).any() or (mask >= 4 ** len(rows)).any():
                raise WrongSumError(
                    f"step {step}: an element lacks one of the ranks that are there, {there:b} in base 4"
                )
        told = {(row.step, row.checksum) for row in rows if row.there}
        if len(told) != 1 or not rows[self._worker.rank].there:
            raise WrongSumError(f"step {step}: ranks have not got the same: {rows}")

    def _exchange(self, own: _Row) -> list[_Row]:
        """What each rank has told; nothing of those who have died."""
        table = np.zeros((self._worker.size, 4), np.int64)
        table[self._worker.rank] = own.there, own.changes, own.step, own.checksum
        self._sum(self._rows, table).wait()
        return [_Row(*map(int, row)) for row in table]

    def _sum(self, declared: Declared, array: npt.NDArray[Any]) -> Any:
        return self._worker.push_pull(declared, array.ctypes.data, Op.SUM)

    def _changes(self) -> int:
        return self._worker.changes() if isinstance(self._worker, HearsOfChanges) else 0

    def _rejoin(self) -> None:
        with returning():
            self._worker.close()
            for attempt in range(_ATTEMPTS):
                try:
                    self._worker = connect(Config.from_env())
                    return
                except PeerLostError as error:
                    if error.peer == "scheduler" or attempt == _ATTEMPTS - 1:
                        raise
                    log.warning("the next world ended before it began: %s; joining another one", error)


def main() -> None:
    """Runs until it is ended."""
    logging.basicConfig(level=logging.WARNING)
    Soak(connect(Config.from_env())).run()


if __name__ == "__main__":
    main()
