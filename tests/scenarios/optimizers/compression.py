"""Training with codecs, as one rank makes it: `body(bps, rank, size, ...)`, and the same by NumPy references."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from byteps_like.compression.codec import Codec
from byteps_like.torch.adapt.tuning import Tuning
from byteps_like.torch.compression.policy import Compress
from byteps_like.torch.job import runtime as _runtime
from byteps_like.tuner.rounds import TrialPace
from byteps_like.tuner.search import Listed
from byteps_like.tuner.setting import Setting
from tests.fakes.codec_rounds import by_reference
from tests.fakes.settings import configure
from tests.scenarios.checks import same_everywhere
from tests.scenarios.models import distance, fill

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


def telescopes(bps: Any, rank: int, size: int) -> None:
    """Codecs whose sums are exact: what was applied and what is left add up to all gradients, in real partitions."""
    shape, steps = (32, 40), 8
    for way in ("thc4", "randomk:ratio=0.1", "powersgd:rank=2", bps.Compression.chunktopk(feedback=True)):
        values, state = matrix_steps(bps, rank, size, {"w": way}, [0.1] * steps, shape)
        left = bps.allreduce(state["byteps_like"]["parameters"]["w"]["residual"].double(), name=f"left.{way}")
        gradients = [gradient(step, other, shape).double() for step in range(steps) for other in range(size)]
        applied = Given({"w": shape}).w.detach().double() - values[-1].double().reshape(shape)
        assert distance(applied + 0.1 * left, 0.1 * sum(gradients) / size) < 1e-5, way
        same_everywhere(bps, values[-1])


def trains_by(bps: Any, rank: int, size: int) -> None:
    """Codecs whose sums are encoded again, momentum before them, and a warm-up: the same weights, that get better."""
    ways = [
        {"compressor": "onebit", "ef": "vanilla", "momentum": "nesterov", "momentum_mu": 0.5},
        bps.Compression.dgc(0.1, momentum=0.5, warmup=(0.5,), steps=10),
        "int8",
        {"w": "blocksparse"},
    ]
    for way in ways:
        model, target = Given({"w": (32, 40)}), gradient(0, 7, (32, 40))
        inner = torch.optim.SGD(model.parameters(), lr=0.05)
        rules = way if isinstance(way, dict) and "w" in way else {"w": way}
        optimizer = bps.DistributedOptimizer(inner, model.named_parameters(), compression=rules)
        begin = distance(model.w.detach(), target)
        for _ in range(40):
            optimizer.zero_grad()
            (0.5 * (model.w - target).square().sum() * 2.0 * (rank + 1) / (size + 1)).backward()
            optimizer.step()
        assert distance(model.w.detach(), target) < 0.5 * begin, way
        same_everywhere(bps, model.w.detach())
        optimizer.close()


def left_out_at_times(bps: Any, rank: int, size: int) -> None:
    """Gradients whose codec is left out for some rounds, and watched: what was applied and what is left adds up."""
    shape, steps = (32, 40), 10
    runtime = _runtime.current()
    usual = runtime.config.compression_monitor
    configure(runtime, compression_monitor=2)
    model = Given({"w": shape})
    begin, inner = model.w.detach().double(), torch.optim.SGD(model.parameters(), lr=0.5)
    rules = {"w": Compress("randomk:ratio=0.1", feedback=True)}
    optimizer = bps.DistributedOptimizer(inner, model.named_parameters(), compression=rules)
    route = optimizer.route
    grid = [Setting(route, credit_bytes=0, coded=number % 2 == 0) for number in range(4)]
    Tuning(optimizer._distribution.reducer, pace=TrialPace(4, 0, 2), search=Listed(grid))
    for step in range(steps):
        optimizer.zero_grad()
        model({"w": gradient(step, rank, shape)}).backward()
        optimizer.step()
    (memory,) = optimizer.state_dict()["byteps_like"]["parameters"].values()
    left = bps.allreduce(memory["residual"].double(), name="left.at.times")
    gradients = [gradient(step, other, shape).double() for step in range(steps) for other in range(size)]
    assert distance(begin - model.w.detach().double() + 0.5 * left, 0.5 * sum(gradients) / size) < 1e-5
    same_everywhere(bps, model.w.detach())
    (seen,) = optimizer.compression_report()
    assert seen.figures is not None and 0.8 < seen.figures.nmse < 1.0
    configure(runtime, compression_monitor=usual)
    optimizer.close()
