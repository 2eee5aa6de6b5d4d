"""Small models and batches that come out the same in every thread and process, whatever the global generators do."""

from __future__ import annotations

import itertools

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def fill(module: nn.Module, seed: int = 1, scale: float = 0.3) -> nn.Module:
    """Gives `module` parameters that depend on `seed` only."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * scale)
    return module


def mlp(dtype: torch.dtype = torch.float64, widths: tuple[int, ...] = (20, 33, 17, 5), seed: int = 1) -> nn.Module:
    """Linear layers with tanh in between."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.Tanh()]
    return fill(nn.Sequential(*layers[:-1]).to(dtype), seed)


def batch(step: int, rows: int = 12, inputs: int = 20, outputs: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """The whole world's batch of one step, in float64."""
    generator = torch.Generator().manual_seed(1000 + step)
    x = torch.randn(rows, inputs, generator=generator, dtype=torch.float64)
    return x, torch.randn(rows, outputs, generator=generator, dtype=torch.float64)


def recomputed(module: nn.Module, x: torch.Tensor, reentrant: bool = False) -> torch.Tensor:
    """`module(x)`, computed again in backward.

    Such modules need no random numbers, so the global generator's state is left alone. Ranks that are threads of one
    process could lock each other out there: one reads the state with the interpreter's lock held, and another holds
    the generator's lock and waits for the interpreter's.
    """
    result: torch.Tensor = checkpoint(module, x, use_reentrant=reentrant, preserve_rng_state=False)
    return result


def share(tensor: torch.Tensor, rank: int, size: int) -> torch.Tensor:
    """The rows of one rank; all ranks get equally many."""
    rows = len(tensor) // size
    return tensor[rank * rows : (rank + 1) * rows]


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Mean squared error, in the model's own element type."""
    dtype = next(model.parameters()).dtype
    return nn.functional.mse_loss(model(x.to(dtype)), y.to(dtype))


def flat(model: nn.Module) -> torch.Tensor:
    """All parameters, one after another."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Norm of the difference, relative to the norm of `b`."""
    return float((a.double() - b.double()).norm() / b.double().norm())
