"""Training with codecs, as one rank makes it: `body(bps, rank, size, ...)`, and the same by NumPy references."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from byteps_like.compression.codec import Codec
from tests.fakes.codec_rounds import by_reference
from tests.scenarios.models import fill

NUMEL = 160


class Given(nn.Module):
    """Parameters whose gradients are what the test says: `forward(gradients)` is linear in them."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(shape, dtype=dtype)))
        fill(self)

    def forward(self, gradients: dict[str, torch.Tensor]) -> torch.Tensor:
        """A loss with these gradients."""
        named = dict(self.named_parameters())
        return sum(((named[name] * value).sum() for name, value in gradients.items()), torch.zeros(()))


def gradient(step: int, rank: int, shape: tuple[int, ...] = (NUMEL,), seed: int = 0) -> torch.Tensor:
    """What `rank` finds in `step`."""
    generator = torch.Generator().manual_seed(10_000 * seed + 100 * step + rank)
    return torch.randn(shape, generator=generator, dtype=torch.float64).float() * (1.0 + rank)


def matrix_steps(
    bps: Any,
    rank: int,
    size: int,
    compression: Any,
    rates: list[float],
    shape: tuple[int, ...] = (8, 20),
    **options: Any,
) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """Steps of SGD on one matrix, at these learning rates: its value after each, and the state in the end."""
    model = Given({"w": shape})
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), compression=compression, **options
    )
    values = []
    for step, rate in enumerate(rates):
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        model({"w": gradient(step, rank, shape)}).backward()
        optimizer.step()
        values.append(model.w.detach().clone().reshape(-1))
    return values, optimizer.state_dict()


def start() -> torch.Tensor:
    """The matrix before the first step."""
    return Given({"w": (8, 20)}).w.detach().clone().reshape(-1)


class Reference:
    """Averages of `size` ranks' gradients by a codec's reference, with error feedback: rounds in order."""

    def __init__(self, codec: Codec, size: int, feedback: bool = True) -> None:
        self.codec, self.size, self.feedback = codec, size, feedback
        self.left = [np.zeros(NUMEL, np.float32) for _ in range(size)]

    def average(self, step: int, key: int, scale: float = 1.0) -> np.ndarray:
        """What all ranks get in `step`; `scale`: of what is left."""
        xs = [gradient(step, rank).numpy().copy() for rank in range(self.size)]
        if self.feedback:
            xs = [x + np.float32(scale) * left for x, left in zip(xs, self.left, strict=True)]
        done = by_reference(self.codec, xs, key, step, 1.0 / self.size)
        self.left = done.residuals
        return done.out.astype(np.float32)
