"""One rank of bench/servers/priority.py: what a small push waits while a large one is in flight. No torch.

Started by the driver with the path of a plan; leaves one JSON line per operation. Times are begins and ends on the
machine's monotonic clock, which all ranks share.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from byteps_like.config import Config
from byteps_like.dtypes import DType, Op
from byteps_like.worker.api import Declared, TensorSpec, Worker
from byteps_like.worker.session import connect

HIGH, LOW = 1 << 20, 0
WAIT = 120.0


@dataclass(frozen=True)
class Plan:
    """What all ranks are told. Sizes in bytes; `gap` is the time between two small pushes beside a large one."""

    small: int
    large: int
    turns: int
    folder: str
    gap: float = 0.0
    beside: int = 6


@dataclass
class Record:
    """One operation of one rank: what it was, when it was posted and when it had landed."""

    phase: str
    turn: int
    index: int
    begin: float
    end: float


class Tensor:
    """A declared name and its memory: `value` everywhere before each sum."""

    def __init__(self, worker: Worker, name: str, nbytes: int) -> None:
        self._worker = worker
        (self._declared,) = worker.declare([TensorSpec(name, DType.FLOAT32, (nbytes // 4,))])
        self._memory = worker.allocate(nbytes)
        view = (ctypes.c_byte * nbytes).from_address(self._memory.address)
        self._data = np.frombuffer(view, dtype=np.float32)

    @property
    def declared(self) -> Declared:
        """As the job knows it."""
        return self._declared

    def fill(self) -> None:
        """Before a sum; not timed."""
        self._data[:] = self._worker.rank + 1

    def push(self, priority: int) -> Any:
        """Posts it; the handle."""
        return self._worker.push_pull(self._declared, self._memory.address, Op.SUM, priority=priority)

    def check(self) -> None:
        """Raises if a sum is wrong."""
        expected = self._worker.size * (self._worker.size + 1) / 2
        if not np.all(self._data == expected):
            raise RuntimeError(f"{self._declared.spec.name}: a sum is wrong")


class Rank:
    """The rank's tensors and records."""

    def __init__(self, worker: Worker, plan: Plan) -> None:
        self.plan, self.worker = plan, worker
        self.tiny = Tensor(worker, "tiny", 64)
        self.large = Tensor(worker, "large", plan.large)
        self.small = [Tensor(worker, f"small {index}", plan.small) for index in range(plan.beside)]
        self.records: list[Record] = []

    def alone(self, phase: str, turn: int, tensors: list[Tensor]) -> None:
        """One after the other, with nothing beside."""
        for index, tensor in enumerate(tensors):
            self._ready(tensor)
            self._timed(phase, turn, index, tensor, HIGH)
            tensor.check()

    def beside(self, phase: str, turn: int, priority: int) -> None:
        """Small ones, a gap between them, while the large one is in flight."""
        self._ready(self.large, *self.small)
        start = time.monotonic()
        handle = self.large.push(LOW)
        for index, tensor in enumerate(self.small):
            time.sleep(max(0.0, start + (index + 1) * self.plan.gap - time.monotonic()))
            if handle.done():
                raise RuntimeError("the large push has ended before the last small one was posted")
            self._timed(phase, turn, index, tensor, priority)
        handle.wait(WAIT)
        self.records.append(Record(f"{phase}, large", turn, 0, start, time.monotonic()))
        for tensor in (self.large, *self.small):
            tensor.check()

    def _ready(self, *tensors: Tensor) -> None:
        for tensor in tensors:
            tensor.fill()
        self.worker.barrier(WAIT)

    def _timed(self, phase: str, turn: int, index: int, tensor: Tensor, priority: int) -> None:
        begin = time.monotonic()
        tensor.push(priority).wait(WAIT)
        self.records.append(Record(phase, turn, index, begin, time.monotonic()))


def main() -> None:
    plan = Plan(**json.loads(Path(sys.argv[1]).read_text()))
    worker = connect(Config.from_env())
    rank = Rank(worker, plan)
    for turn in range(plan.turns + 1):  # the first makes links and lets TCP find out what the path takes
        rank.alone("round trip", turn, [rank.tiny] * 10)
        rank.alone("alone", turn, rank.small)
        rank.alone("large alone", turn, [rank.large])
        rank.beside("beside", turn, HIGH)
    lines = (json.dumps(asdict(record)) + "\n" for record in rank.records if record.turn)
    (Path(plan.folder) / f"rank{worker.rank}.jsonl").write_text("".join(lines))
    worker.barrier(WAIT)
    worker.close()


if __name__ == "__main__":
    main()
