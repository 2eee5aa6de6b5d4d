"""A small model that ranks train by themselves."""

from __future__ import annotations

import threading

import torch

_drawing = threading.Lock()  # there is one generator for all threads


def model_of(seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.nn.Sequential:
    with _drawing:
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)).to(dtype)


def backward(model: torch.nn.Module, rank: int, step: int) -> None:
    draw = torch.Generator().manual_seed(100 * rank + step)
    dtype = next(model.parameters()).dtype
    inputs, wanted = torch.randn(8, 6, generator=draw).to(dtype), torch.randn(8, 3, generator=draw).to(dtype)
    torch.nn.functional.mse_loss(model(inputs), wanted).backward()


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
