"""Which k gives the shortest step: measured while training, on a grid that grows finer around the best."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

_POINTS = 5
_WARM_UP = 1


class FirstKSearch:
    """Tries k = 0 to `layers` (where nothing is deferred), each for `steps` steps after one that isn't counted.

    First five values of k, evenly spread; then those halfway to the neighbours of the best, until these are closer
    than a 32nd of all. `layers` itself is kept unless another is faster by more than `margin`. About
    2 log2(layers / 4) + 5 values are tried. Plain arithmetic: no torch, no clock.
    """

    def __init__(self, layers: int, steps: int = 5, margin: float = 0.01) -> None:
        self.first_k = layers
        """What is to be used for the next step."""
        self.done = layers == 0
        self._layers, self._steps, self._margin = layers, steps, margin
        self._found: dict[int, float] = {}
        self._grid = sorted({round(layers * point / (_POINTS - 1)) for point in range(_POINTS)}, reverse=True)
        self._turn = 0
        self._times: list[list[float]] = [[] for _ in self._grid]
        self._skip = _WARM_UP

    @property
    def table(self) -> dict[int, float]:
        """Seconds of a step by k, of what has been agreed on."""
        return dict(sorted(self._found.items()))

    def record(self, seconds: float) -> bool:
        """A step with `first_k` took so long. Whether the grid is complete: then `decide` must follow."""
        if self._skip:
            self._skip -= 1
            return False
        self._times[self._turn].append(seconds)
        if len(self._times[self._turn]) == self._steps:
            self._turn, self._skip = self._turn + 1, _WARM_UP
        if self._turn == len(self._grid):
            return True
        self.first_k = self._grid[self._turn]
        return False

    def times(self) -> list[float]:
        """Of this rank, for each k of the grid: the median, which a few disturbed steps don't move."""
        return [statistics.median(times) for times in self._times]

    def decide(self, times: Sequence[float]) -> None:
        """Goes on with `times`, on which all ranks have agreed, for each k of the grid."""
        self._found.update(zip(self._grid, times, strict=True))
        best = min(self._found, key=self._found.__getitem__)
        self._grid = self._halfway(best)
        self._turn, self._times = 0, [[] for _ in self._grid]
        self.done = not self._grid
        if self.done:
            plain = self._layers
            self.first_k = best if self._found[best] < self._found[plain] * (1.0 - self._margin) else plain
        else:
            self.first_k = self._grid[0]

    def _halfway(self, best: int) -> list[int]:
        known = sorted(self._found)
        at, least = known.index(best), max(1, self._layers // 32)
        neighbours = [known[place] for place in (at - 1, at + 1) if 0 <= place < len(known)]
        between = [(best + other) // 2 for other in neighbours if abs(best - other) > least]
        return [k for k in between if k not in self._found]
