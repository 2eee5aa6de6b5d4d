"""What all ranks know of each other after a commit.

Ranks hear from the scheduler that others wait to join, or have died, but each a little earlier or later: if each acted
on what it has heard itself, some would leave for the next world one commit before the others, which would wait for them
in vain. So they tell each other, at a commit, by a sum in which each has places of its own. What rank 0 knows of the
others' work comes along: it is what the next world begins with if one of them dies.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from byteps_like.torch.job import runtime as _runtime
from byteps_like.torch.ops.differentiable import push_pull
from byteps_like.worker.api import Dismissal, HearsOfChanges

_NAME = "byteps_like.elastic.commit"


def changes() -> int:
    """How often this rank has heard, in this world, that the next one would have other members."""
    worker = _runtime.current().worker
    return worker.changes() if isinstance(worker, HearsOfChanges) else 0


def dismissal() -> Dismissal | None:
    """That this rank was asked to leave the job, if it was."""
    worker = _runtime.current().worker
    return worker.dismissal() if isinstance(worker, HearsOfChanges) else None


def exchange(own: Sequence[int]) -> list[list[int]]:
    """What each rank has given, in the order of ranks: as many numbers each. Blocks.

    Steps: one sum; bytes each way: 8 per number and rank. Raises what a sum raises.
    """
    size = _runtime.size()
    if size == 1:
        return [list(own)]
    told = torch.zeros(size, len(own), dtype=torch.int64)
    told[_runtime.rank()] = torch.tensor(own, dtype=torch.int64)
    rows: list[list[int]] = push_pull(told, average=False, name=_NAME).tolist()
    return rows
