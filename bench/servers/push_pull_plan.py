"""What the driver of bench/servers/push_pull.py tells its workers, and what they tell it. No torch here."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

OURS, RING, RIVAL = "byteps_like", "our ring", "gloo"


@dataclass(frozen=True)
class Plan:
    """What all ranks are told. `bursts` and `repeats` are parallel to `sizes` (bytes): a burst is how many operations
    follow one another between two barriers, repeats how many bursts there are. `memory` is of "arena" and "private"."""

    sizes: list[int]
    bursts: list[int]
    repeats: list[int]
    memory: list[str]
    contenders: list[str]
    folder: str
    interface: str

    def save(self) -> Path:
        """Where the workers read it."""
        path = Path(self.folder) / "plan.json"
        path.write_text(json.dumps(asdict(self)))
        return path


@dataclass
class Operation:
    """One burst of operations of one rank. Payload counts what the worker says, wire what the interface says."""

    contender: str
    memory: str
    size: int
    burst: int = 1
    start: float = 0.0
    end: float = 0.0
    payload_sent: int = 0
    payload_received: int = 0
    wire_sent: int = 0
    wire_received: int = 0
    segments: int = 0
    """What TCP has sent on this host, in its own segments; and of these again."""
    again: int = 0
    bounced: int = 0
    """Bytes that the worker has copied into shared memory, and back out of it."""
    look: str = ""
    """"use": not timed, since reading the next two takes a while. "calls": neither, since counting them does."""
    sleeps: int = 0
    """How often threads of this rank went to sleep, of rank 0 also those of the servers on its host."""
    processor: float = 0.0
    """Seconds of processor time of the same."""
    calls: float | None = None
    """System calls of all ranks and servers of the machine. Only of rank 0, where perf can count them."""
