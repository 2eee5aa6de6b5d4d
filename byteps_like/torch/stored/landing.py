"""What has become of contributions, and values that become parameters."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

import torch

from byteps_like.store.future import Future


@dataclass(frozen=True)
class Contributed:
    """Contributions of this rank that servers have settled; one is a parameter's."""

    made: int = 0
    left_out: int = 0
    """That came too late, or were not finite."""
    oldest: int = 0
    """Most versions that were made between what one was computed on and what it became part of."""


class Settling:
    """Counts contributions as they are settled. One thread at a time."""

    def __init__(self) -> None:
        self._under_way: deque[Future] = deque()
        self._found = Contributed()

    def add(self, future: Future) -> None:
        """One more is on its way."""
        self._under_way.append(future)

    def so_far(self) -> Contributed:
        """Never blocks. Raises the job's error where a contribution has ended with it."""
        while self._under_way and self._under_way[0].done():
            future = self._under_way.popleft()
            future.wait()
            found = self._found
            self._found = replace(
                found,
                made=found.made + 1,
                left_out=found.left_out + (not future.counted),
                oldest=max(found.oldest, future.age),
            )
        return self._found


def land(parameter: torch.Tensor, value: torch.Tensor) -> None:
    """`parameter` becomes `value`, in its own type and on its own device."""
    with torch.no_grad():
        parameter.copy_(value)
