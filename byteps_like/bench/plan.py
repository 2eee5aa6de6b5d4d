"""What the driver of a benchmark of collectives tells its ranks, and what they tell it. No torch here."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

ELEMENT = 4  # bytes of a float32
OPERATIONS = (
    "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all", "send_recv", "barrier",
)  # fmt: skip
NATIVE, C10D, GLOO, MPI, DIRECT = "byteps_like", "byteps_like c10d", "gloo", "mpi", "limit"
DEEPSPEED = "deepspeed"
OURS = (NATIVE, C10D)
RIVALS = (GLOO, MPI, DEEPSPEED)


@dataclass(frozen=True)
class Case:
    """One operation on one size. `nbytes` is of the larger of a rank's two buffers, as nccl-tests counts."""

    operation: str
    nbytes: int
    in_place: bool
    memory: str
    """"shared" (the contender reads and writes it where it lies) or "private"."""

    def elements(self, ranks: int) -> int:
        """float32 values in the larger buffer: a multiple of the number of ranks, so that parts are equal."""
        return max(1, -(-self.nbytes // (ELEMENT * ranks))) * ranks if self.nbytes else 0

    def moved(self, ranks: int) -> float:
        """Bytes for the bus bandwidth, per byte of `nbytes`: what crosses the busiest link of an ideal algorithm."""
        share = (ranks - 1) / ranks
        factors = {"all_reduce": 2 * share, "reduce_scatter": share, "all_gather": share, "all_to_all": share}
        return factors.get(self.operation, 1.0)


@dataclass(frozen=True)
class BenchPlan:
    """What all ranks are told."""

    ranks: int
    operations: list[str]
    sizes: list[int]
    places: list[bool]
    memory: list[str]
    contenders: list[str]
    seconds: float
    folder: str
    bind: bool = False
    """Each rank stays on a core of its own."""
    interface: str = ""
    """Whose byte counters tell what crossed the wire; "" on one host."""
    addresses: list[str] = field(default_factory=list)
    """Of each rank's host, in a lab."""
    mpi: Mapping[str, str] = field(default_factory=dict)
    """OpenMPI's MCA parameters, by name."""

    def cases(self) -> Iterator[Case]:
        """In the order in which all ranks run them. Broadcasts and messages know one buffer; a barrier none."""
        for operation in self.operations:
            if operation == "barrier":
                yield Case(operation, 0, True, "private")
                continue
            for nbytes in self.sizes:
                for memory in self.memory:
                    for in_place in self.places:
                        if in_place is False and operation == "broadcast":
                            continue
                        if in_place is True and operation == "send_recv":
                            continue
                        yield Case(operation, nbytes, in_place, memory)

    def save(self) -> Path:
        """Where the ranks read it."""
        path = Path(self.folder) / "plan.json"
        path.write_text(json.dumps(asdict(self)))
        return path

    @classmethod
    def load(cls, path: str) -> BenchPlan:
        """What `save` wrote."""
        return cls(**json.loads(Path(path).read_text()))


@dataclass(frozen=True)
class BenchSample:
    """`calls` calls of one rank, one behind the other. Times are of the machine's monotonic clock, common to all."""

    case: int
    contender: str
    start: float
    end: float
    calls: int
    sent: int
    """Bytes on the wire by the interface's counter."""


@dataclass(frozen=True)
class Remark:
    """Why a contender has no samples of a case."""

    case: int
    contender: str
    why: str
