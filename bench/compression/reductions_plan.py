"""What the driver of bench/compression/reductions.py tells its workers, and what they tell it. No torch here."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

GLOO, FP32, BF16 = "gloo", "fp32", "bf16"
UNCODED = (GLOO, FP32, BF16)
DATA = ("gauss", "lognormal", "gradients")
"""Kinds of tensors whose error is measured; the first is what is timed."""


@dataclass(frozen=True)
class Plan:
    """What all ranks are told. `codecs`: canonical texts by the names they are shown by. Sizes in bytes."""

    codecs: dict[str, str]
    route: str
    size: int
    error_size: int
    repeats: int
    folder: str
    interface: str

    def save(self) -> Path:
        """Where the workers read it."""
        path = Path(self.folder) / "plan.json"
        path.write_text(json.dumps(asdict(self)))
        return path

    @property
    def contenders(self) -> list[str]:
        """All, in the order in which they take turns."""
        return [*UNCODED, *self.codecs]


@dataclass
class Result:
    """Of one contender on one rank: starts and ends on the clock that all ranks share, bytes of one operation."""

    contender: str
    starts: list[float]
    ends: list[float]
    wire_sent: int
    wire_received: int
    nmse: dict[str, float]
