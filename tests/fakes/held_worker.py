"""A world of one whose results land when the test says so, partition by partition."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from byteps_like.worker.api import Declared
from byteps_like.worker.local import CompletedHandle, LocalWorker

DEADLINE = 20.0


class HeldHandle:
    """Lands when `land` is called; waiting for it before that is an error, or calls `on_wait` if there is one.

    `comes` blocks another thread until then: an `on_wait` for what is waited for in the background.
    """

    def __init__(self, name: str, parts: range, priority: int, worker: HeldWorker) -> None:
        self.name, self.parts, self.priority, self._worker = name, parts, priority, worker
        self.error: Exception | None = None
        self._landed = threading.Event()

    @property
    def landed(self) -> bool:
        return self._landed.is_set()

    def land(self, error: Exception | None = None) -> None:
        self.error = error
        self._landed.set()

    def comes(self) -> None:
        self._landed.wait(DEADLINE)

    def done(self) -> bool:
        return self.landed

    def wait(self, timeout: float | None = None) -> None:
        if not self.landed and self._worker.on_wait is not None:
            self._worker.on_wait(self)
        assert self.landed, f"waited for partitions {self.parts}, which are in flight"
        if self.error is not None:
            raise self.error


class HeldWorker(LocalWorker):
    """See worker.local.LocalWorker. `holding`: what is started from now on is held back, and kept in `flights`."""

    def __init__(self, partition_bytes: int) -> None:
        super().__init__(partition_bytes)
        self.holding = False
        self.flights: list[HeldHandle] = []
        self.on_wait: Callable[[HeldHandle], None] | None = None

    def push_pull(
        self, declared: Declared, *arguments: Any, parts: range | None = None, priority: int | None = None, **how: Any
    ) -> Any:
        super().push_pull(declared, *arguments, parts=parts, **how)
        if not self.holding:
            return CompletedHandle()
        whole = range(len(declared.partitions))
        self.flights.append(HeldHandle(declared.spec.name, whole if parts is None else parts, priority or 0, self))
        return self.flights[-1]

    def land_all(self) -> None:
        for flight in self.flights:
            flight.land()
