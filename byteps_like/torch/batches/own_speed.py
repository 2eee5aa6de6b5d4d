"""How fast this rank's own work is, without what it waits for others."""

from __future__ import annotations

import torch

from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.device import devices
from byteps_like.torch.job.runtime import Runtime

_LEAST_SECONDS = 1e-9


class OwnSpeed:
    """Samples per second of this rank's own work: an exponential moving average. One thread at a time.

    `smoothing`: what the newest measurement counts. The first step is not measured, for in it libraries are loaded and
    memory is taken.
    """

    def __init__(self, runtime: Runtime, smoothing: float, device: torch.device) -> None:
        self._runtime, self._smoothing, self._device = runtime, smoothing, devices.at(device)
        self._begun: float | None = None
        self._steps = 0
        self.average = 0.0

    @property
    def measured(self) -> int:
        """How many steps the average is of."""
        return max(self._steps - 1, 0)

    def check_idle(self) -> None:
        """Raises InvalidArgumentError within a step."""
        if self._begun is not None:
            raise InvalidArgumentError("this BatchShares has begun a step: end() it before the next")

    def begin(self) -> None:
        """The work of a step begins."""
        self._begun = self._now()

    def end(self, samples: int) -> None:
        """It has ended, and was that of so many samples. Blocks until a device has done it. Raises InvalidArgumentError
        if none was begun."""
        if self._begun is None:
            raise InvalidArgumentError("BatchShares.end() without begin(): call begin() before the step's work")
        newest = samples / max(self._now() - self._begun, _LEAST_SECONDS)
        self._begun = None
        self._steps += 1
        if self.measured:
            old = self.average or newest
            self.average = old + self._smoothing * (newest - old)

    def drop(self) -> None:
        """The work was not finished, and does not count."""
        self._begun = None

    def _now(self) -> float:
        if self._device is not None:
            self._device.current().record().wait()
        return self._runtime.clock() - self._runtime.names.waited()
