"""What the driver of bench/training.py tells its workers, and what they tell it. No torch here."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from byteps_like.planner.workload import Workload
from byteps_like.planner.workloads import load

CONTENDERS = {
    "gloo DDP": "torch's DistributedDataParallel over gloo",
    "byteps DDP": "torch's DistributedDataParallel over this project's process group",
    "ring fifo": "DistributedOptimizer over collectives, first in first out",
    "ring priorities": "layers near the input first",
    "ring cross-barrier": "and the next forward waits for its own layers only",
    "ring deferred": "and weight gradients of the last layers wait; k searched before it is timed",
    "servers fifo": "DistributedOptimizer over spare servers, first in first out",
    "servers priorities": "layers near the input first",
    "servers cross-barrier": "and the next forward waits for its own layers only",
    "servers deferred": "and weight gradients of the last layers wait; k searched before it is timed",
}


@dataclass(frozen=True)
class Plan:
    """What all ranks are told. `seconds` of compute and `total_bytes` of gradients per step; `bucket_mb` is DDP's."""

    models: list[str]
    contenders: list[str]
    total_bytes: int
    seconds: float
    bucket_mb: float
    warm_up: int
    steps: int
    rounds: int
    folder: str

    def workload(self, model: str) -> Workload:
        """The model's step, scaled."""
        return load(model).scaled(total_bytes=self.total_bytes, compute_seconds=self.seconds)

    def save(self) -> Path:
        """Where the workers read it."""
        path = Path(self.folder) / "plan.json"
        path.write_text(json.dumps(asdict(self)))
        return path


@dataclass
class Measured:
    """Some steps of one contender on one rank; `seconds` per step, `processor` of them in use by this process.

    `first_k` is DeferredBackward's, -1 without.
    """

    model: str
    contender: str
    seconds: float
    processor: float
    first_k: int
