"""Gradients on a device that go to servers by the engine: `body(bps, rank, size, device)` is what one rank sees.

Nothing is calculated whose bits depend on who does: gradients are given, and what comes back is compared.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from byteps_like.torch.job import runtime
from tests.fakes.settings import configure

ROUNDS = 4
SHAPES = ((64, 48), (25, 40), (7, 33))
BUSY = 400_000_000
"""Cycles: some tenths of a second of a GPU."""


def gradient(rank: int, step: int, shape: tuple[int, ...]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(shape, generator=generator)


class Sums:
    """Parameters whose gradients are `gradient`'s."""

    def __init__(self, bps: Any, rank: int, device: torch.device, compression: Any) -> None:
        configure(runtime.current(), min_compress_bytes=0)
        self._rank, self._device = rank, device
        self.parameters = [nn.Parameter(torch.zeros(shape, device=device)) for shape in SHAPES]
        plain = torch.optim.SGD(self.parameters, lr=0.1)
        self.optimizer = bps.DistributedOptimizer(
            plain, [(str(number), item) for number, item in enumerate(self.parameters)], compression=compression
        )

    def given(self, step: int) -> list[torch.Tensor]:
        """On the device. Blocks: a copy of memory that isn't page-locked has the host wait for all of the stream."""
        return [gradient(self._rank, step, item.shape).to(self._device) for item in self.parameters]

    def backward(self, given: list[torch.Tensor]) -> None:
        self.optimizer.zero_grad()
        for item, value in zip(self.parameters, given, strict=True):
            (item * value).sum().backward()

    def flown(self) -> list[Any]:
        arenas = self.optimizer._distribution.reducer.parameters.buckets
        return [handle for arena in arenas for _, handle in arena._flights.flown if hasattr(handle, "block")]

    def found(self) -> torch.Tensor:
        return torch.cat([item.grad.reshape(-1).cpu() for item in self.parameters])


def reduced(
    bps: Any, rank: int, size: int, device: torch.device, compression: Any
) -> tuple[torch.Tensor, dict[str, float]]:
    """Averages of several rounds, with what codecs have left out in them, and this rank's counters."""
    sums, found = Sums(bps, rank, device, compression), []
    for step in range(ROUNDS):
        sums.backward(sums.given(step))
        sums.optimizer.synchronize()
        found.append(sums.found())
    return torch.cat(found), runtime.current().stats()


def busy(bps: Any, rank: int, size: int, device: torch.device) -> tuple[bool, torch.Tensor]:
    """Whether gradients were on their way still when synchronize() returned: the device had something else to do."""
    sums = Sums(bps, rank, device, None)
    first, second = sums.given(0), sums.given(1)
    sums.backward(first)
    sums.optimizer.synchronize()  # in the first round the host waits
    torch.cuda._sleep(BUSY)
    sums.backward(second)
    flown = sums.flown()
    sums.optimizer.synchronize()
    late = not any(handle.done() for handle in flown)
    for handle in flown:  # before a copy of memory that isn't page-locked, which would hold up the driver
        handle.wait()
    return late, sums.found()
