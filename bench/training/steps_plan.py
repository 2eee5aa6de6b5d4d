"""What the driver of bench/training/steps.py tells its workers, and what they tell it. No torch here."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from byteps_like.planner.workload import Workload
from byteps_like.planner.workloads import load

PLAIN = "plain servers"
CONTENDERS = {
    "gloo DDP": "torch's DistributedDataParallel over gloo",
    "byteps DDP": "torch's DistributedDataParallel over this project's process group",
    PLAIN: "a parameter server without a scheduler: whole tensors, first in first out, with a barrier",
    "ring fifo": "DistributedOptimizer over collectives: partitions, first in first out, with a barrier",
    "ring priorities": "with a barrier, but layers near the input first",
    "ring cross-barrier": "layers near the input first, and the next forward waits for its own layers only",
    "ring deferred": "and weight gradients of the last layers wait; k searched before it is timed",
    "servers fifo": "DistributedOptimizer over spare servers: partitions, first in first out, with a barrier",
    "servers priorities": "with a barrier, but layers near the input first",
    "servers cross-barrier": "layers near the input first, and the next forward waits for its own layers only",
    "servers deferred": "and weight gradients of the last layers wait; k searched before it is timed",
    "servers cross-barrier, small partitions": "of 32 KiB",
    "servers cross-barrier, large partitions": "of 16 MiB: as large as the pieces of the arena",
    "servers cross-barrier, small credit": "stop and wait: one segment in flight on each link",
}


@dataclass(frozen=True)
class Variant:
    """What differs from the job's settings; 0: nothing."""

    partition_bytes: int = 0
    credit_bytes: int = 0


VARIANTS = {
    "": Variant(),
    "small partitions": Variant(partition_bytes=32 << 10),
    "large partitions": Variant(partition_bytes=16 << 20),
    "small credit": Variant(credit_bytes=1),
}


@dataclass(frozen=True)
class Plan:
    """What all ranks are told. `seconds` of compute and `total_bytes` of gradients per step; `bucket_mb` is DDP's;
    `plain` are the addresses of plain servers."""

    models: list[str]
    contenders: list[str]
    total_bytes: int
    seconds: float
    bucket_mb: float
    warm_up: int
    steps: int
    rounds: int
    folder: str
    plain: list[str]

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
