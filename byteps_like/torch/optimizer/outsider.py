"""DistributedOptimizer(process_set=...) on a rank outside of the set: the plain optimizer, with the same methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from byteps_like.torch.optimizer.twin import DistributedTwin


class OutsiderMixin(DistributedTwin):
    """As optimizer.DistributedOptimizerMixin; gradients stay this rank's own, and nothing is sent."""

    route = "none"
    route_why = "this rank is not in the process set"
    tuned = None

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of the plain optimizer."""
        return super().step() if closure is None else super().step(closure)

    def synchronize(self) -> None:
        """Does nothing."""

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Changes nothing."""
        yield

    def compression_report(self) -> list[Any]:
        """Empty."""
        return []

    def close(self) -> None:
        """Does nothing: there are no hooks."""
