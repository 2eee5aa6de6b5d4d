"""A model that takes a workload's time and makes its gradients, but sleeps instead of computing."""

from __future__ import annotations

import time
from typing import Any

import torch

from byteps_like.planner.workload import Layer, Workload

SHORTEST = 1e-3  # seconds; the kernel ends shorter sleeps too late by a good part of them


class Clock:
    """Sleeps off what layers take; what one sleep was too long is taken from the next."""

    def __init__(self) -> None:
        self._debt = 0.0

    def pass_by(self, seconds: float) -> None:
        """Time goes by."""
        self._debt += seconds
        if self._debt >= SHORTEST:
            start = time.perf_counter()
            time.sleep(self._debt)
            self._debt -= time.perf_counter() - start


class EmulatedLayer(torch.nn.Module):
    """Hands its input on. Its parameters have as many elements as the layer's, and equal gradients in every element."""

    def __init__(self, layer: Layer, clock: Clock, gradient: float) -> None:
        super().__init__()
        self.layer, self.clock, self.gradient = layer, clock, gradient
        for number, (_, shape) in enumerate(layer.parameters):
            self.register_parameter(f"p{number}", torch.nn.Parameter(torch.zeros(shape)))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Sleeps."""
        self.clock.pass_by(self.layer.forward)
        weights: torch.Tensor = _Weights.apply(self, *self.parameters())
        result: torch.Tensor = _Join.apply(_Input.apply(value, self), weights)
        return result


# Backward takes as long for the input's gradient as for those of the weights, which DeferredBackward may put off. A
# layer without weights of its own, as one whose matrix is the embedding's, has nothing to put off.


class _Input(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, module: EmulatedLayer) -> torch.Tensor:
        ctx.module = module
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        layer = ctx.module.layer
        ctx.module.clock.pass_by(layer.backward / 2 if layer.parameters else layer.backward)
        return gradient, None


class _Weights(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, module: EmulatedLayer, *parameters: torch.Tensor) -> torch.Tensor:
        ctx.module = module
        ctx.shapes = [parameter.shape for parameter in parameters]
        return torch.empty(0)

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[Any, ...]:
        ctx.module.clock.pass_by(ctx.module.layer.backward / 2)
        one = torch.tensor(ctx.module.gradient)
        return None, *(one.expand(shape) for shape in ctx.shapes)


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, value: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return value + weights.sum()

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        return gradient, torch.empty(0)


def emulate(workload: Workload, gradient: float) -> torch.nn.Sequential:
    """All layers from the input on. Call it with a tensor that requires a gradient."""
    clock = Clock()
    return torch.nn.Sequential(*(EmulatedLayer(layer, clock, gradient) for layer in workload.layers))
