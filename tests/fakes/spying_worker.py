"""A worker that notes what is sent."""

from __future__ import annotations

from byteps_like.worker.api import Declared
from byteps_like.worker.local import LocalWorker


class Spy(LocalWorker):
    """A world of one that notes what is sent."""

    def __init__(self, partition_bytes: int = 1024) -> None:
        super().__init__(partition_bytes)
        self.sent: list[list[int]] = []
        self.priorities: list[int] = []
        self.declared: Declared | None = None

    def push_pull(self, declared, address, op, *, root=0, parts=None, priority=None):
        if declared.spec.name.startswith("gradients") and not declared.spec.name.endswith("order"):
            self.sent.append(list(parts))
            self.priorities.append(priority)
            self.declared = declared
        return super().push_pull(declared, address, op, root=root, parts=parts, priority=priority)
