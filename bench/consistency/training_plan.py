"""What the ranks of bench/consistency/training.py are told, and the ways in which they train. No torch here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

BSP = "bsp"


@dataclass(frozen=True)
class Training:
    """Arguments of a DistributedOptimizer, or of LowComm.

    `together`: of how many contributions a version is made, or by how much they are damped: the learning rate is so
    many quarters of bsp's. `by_versions`: a training ends with as many versions as its samples make, since ranks whose
    contributions are left out, or late, go on. LowComm with a quorum has no such end, and is missing here.
    """

    terms: Mapping[str, Any] = field(default_factory=dict)
    together: int = 4
    by_versions: bool = False
    low_comm: bool = False


TRAININGS = {
    BSP: Training(),
    "ssp:s=3": Training({"consistency": "ssp:s=3"}, 1),
    "ssp:s=8": Training({"consistency": "ssp:s=8"}, 1),
    "dssp:lo=1,hi=8": Training({"consistency": "dssp:lo=1,hi=8"}, 1),
    "backup:b=1": Training({"consistency": "backup:b=1"}, 3, by_versions=True),
    "k_of_n:k=3,late=next": Training({"consistency": "k_of_n:k=3,late=next"}, 3, by_versions=True),
    "k_of_n:k=2,late=next": Training({"consistency": "k_of_n:k=2,late=next"}, 2, by_versions=True),
    "asp": Training({"consistency": "asp"}, 1),
    "asp, damped": Training({"consistency": "asp", "damp": "inverse"}, 3),
    "asp, by workers": Training({"consistency": "asp", "apply": "worker"}, 1),
    "asp, every 4 steps": Training({"consistency": "asp", "push_every": 4, "pull_every": 4}, 1),
    "local SGD": Training({"every": 10, "outer": "assign"}, low_comm=True),
    "DiLoCo": Training({"every": 10}, low_comm=True),
    "DiLoCo, 4 fragments": Training({"every": 10, "fragments": 4, "delay": 2}, low_comm=True),
}
"""By name."""


@dataclass(frozen=True)
class Plan:
    """`samples` of all ranks in each training of a task, by its name."""

    task: str
    seeds: int
    samples: int
    folder: str

    def save(self) -> Path:
        """Where the ranks read it."""
        path = Path(self.folder) / "plan.json"
        path.write_text(json.dumps(asdict(self)))
        return path
