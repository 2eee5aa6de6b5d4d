"""One rank of bench/plan/validation.py: training steps that sleep instead of computing, over the real runtime.

Pushes partitions as the optimizer does, without torch: a process that imports it takes seconds to start. Leaves the
times at which each step's backward ended.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from byteps_like.config import Config
from byteps_like.dtypes import Op
from byteps_like.planner.step import Gradients, backward
from byteps_like.planner.workload import ITEMSIZE, Workload
from byteps_like.worker.layout import partitions_of, runs
from byteps_like.worker.session import connect

WAIT = 60.0


class Sleeper:
    """Lets emulated compute go by; what one sleep was too long is taken from the next."""

    def __init__(self) -> None:
        self._debt = 0.0

    def pass_by(self, seconds: float) -> None:
        """Time goes by."""
        self._debt += seconds
        if self._debt >= 1e-3:
            start = time.perf_counter()
            time.sleep(self._debt)
            self._debt -= time.perf_counter() - start


class Rank:
    """A worker with its gradients in an arena."""

    def __init__(self, worker: Any, workload: Workload, priorities: bool, barrier: bool) -> None:
        self.ends: list[float] = []
        self._worker, self._workload, self._priorities, self._barrier = worker, workload, priorities, barrier
        self._order = backward(workload, None)
        gradients = Gradients.of(workload)
        declared = worker.declare(gradients.specs(whole=False, fine=not barrier))
        nbytes = gradients.layout.total * ITEMSIZE
        self._memory = worker.allocate(nbytes)
        self.values = np.frombuffer((ctypes.c_byte * nbytes).from_address(self._memory.address), np.float32)
        self._places: list[Any] = []  # of each partition: its tensor, its number there, where the tensor begins
        starts, offset = [], 0
        for item in declared:
            self._places += [(item, number, self._memory.address + offset) for number in range(len(item.partitions))]
            starts += [offset + part.offset for part in item.partitions]
            offset += item.spec.nbytes
        self._parts = [partitions_of(starts, *span) for span in gradients.spans]
        tail = partitions_of(starts, gradients.layout.tail * ITEMSIZE, gradients.layout.total * ITEMSIZE)
        self._waits_for = [sum(part in parts for parts in [*self._parts, tail]) for part in range(len(starts))]
        self._flights: dict[int, Any] = {}
        self._sleeper = Sleeper()

    def step(self) -> None:
        """Forward and backward."""
        if self._barrier:
            self._land(range(len(self._waits_for)))
        for layer, parts in zip(self._workload.layers, self._parts, strict=True):
            self._land(parts)
            self._sleeper.pass_by(layer.forward)
        self._land(range(len(self._waits_for)))
        pending = list(self._waits_for)
        for seconds, number in self._order:
            self._sleeper.pass_by(seconds)
            if number is not None:
                self._push([part for part in self._parts[number] if self._complete(pending, part)])
        self._push([part for part, left in enumerate(pending) if left > 0])
        self.ends.append(time.perf_counter())

    def sum(self) -> None:
        """All of it at once, and waits: with ones everywhere the number of ranks is what must come."""
        self._push(list(range(len(self._waits_for))))
        self._land(range(len(self._waits_for)))

    def _complete(self, pending: list[int], part: int) -> bool:
        pending[part] -= 1
        return pending[part] == 0

    def _push(self, parts: list[int]) -> None:
        for _, own in groupby(parts, key=lambda part: self._places[part][0].tensor_id):
            for run in runs(list(own)):
                for part in run:
                    self._flights[part] = self._start(part, run.start if self._priorities else 0)

    def _start(self, part: int, priority: int) -> Any:
        declared, number, address = self._places[part]
        parts = range(number, number + 1)
        return self._worker.push_pull(declared, address, Op.SUM, parts=parts, priority=priority)

    def _land(self, parts: range) -> None:
        for part in parts:
            flight = self._flights.pop(part, None)
            if flight is not None:
                flight.wait(WAIT)


def main() -> None:
    plan = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    worker = connect(Config.from_env())
    try:
        rank = Rank(worker, Workload.read(plan["workload"]), plan["priorities"], plan["barrier"])
        rank.values[:] = 1.0
        rank.sum()
        if not (rank.values == worker.size).all():
            raise RuntimeError("the sums are wrong")
        rank.values[:] = 0.0
        worker.barrier()
        for _ in range(plan["steps"]):
            rank.step()
        (Path(plan["folder"]) / f"rank{worker.rank}.json").write_text(json.dumps(rank.ends), encoding="utf-8")
        worker.barrier()
    finally:
        worker.close()


if __name__ == "__main__":
    main()
