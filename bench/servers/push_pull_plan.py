"""What the driver of bench/servers/push_pull.py tells its workers, and what they tell it. No torch here."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

OURS, RING, RIVAL = "byteps_like", "our ring", "gloo"


@dataclass(frozen=True)
class Plan:
    """What all ranks are told. `repeats` is parallel to `sizes` (bytes); `memory` is of "arena" and "private"."""

    sizes: list[int]
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
    """One timed operation of one rank. Payload counts what the worker says, wire what the interface says."""

    contender: str
    memory: str
    size: int
    start: float = 0.0
    end: float = 0.0
    payload_sent: int = 0
    payload_received: int = 0
    wire_sent: int = 0
    wire_received: int = 0
    segments: int = 0
    """What TCP has sent on this host, in its own segments; and of these again."""
    again: int = 0
