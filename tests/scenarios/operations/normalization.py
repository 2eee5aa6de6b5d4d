"""Batch normalization over all ranks' batches: `body(bps, rank, size)`, for threads and processes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.scenarios.checks import raises
from tests.scenarios.models import fill

SHAPES = {nn.BatchNorm1d: ((5,), (5, 7)), nn.BatchNorm2d: ((5, 3, 2),), nn.BatchNorm3d: ((5, 2, 3, 2),)}


def bounds(rank: int, size: int) -> slice:
    """A rank's samples: fewer on the first ranks, none on rank 0 if there are others."""
    start = sum(range(rank))
    return slice(start, start + rank) if size > 1 else slice(0, 4)


def samples(size: int, shape: tuple[int, ...], seed: int, dtype: torch.dtype) -> torch.Tensor:
    """Of all ranks; far from zero, so that squares would cancel."""
    count = max(sum(range(size)), 4)
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, *shape, generator=generator, dtype=torch.float64).add(30.0).to(dtype)


def as_one_process(bps: Any, rank: int, size: int) -> None:
    """Outputs, gradients and running statistics of torch's own layer that has seen all ranks' samples at once."""
    for kind, shapes in SHAPES.items():
        for shape in shapes:
            for options in ({}, {"momentum": None}, {"affine": False}, {"track_running_stats": False}):
                for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-3)):
                    same(bps, rank, size, kind(5, **options, dtype=dtype), shape, tolerance)


def same(bps: Any, rank: int, size: int, reference: Any, shape: tuple[int, ...], tolerance: float) -> None:
    options = {"affine": reference.affine, "track_running_stats": reference.track_running_stats}
    dtype = torch.float64 if tolerance < 1e-6 else torch.float32
    layer = bps.SyncBatchNorm(5, momentum=reference.momentum, **options, dtype=dtype)
    if reference.affine:
        with torch.no_grad():
            reference.weight.uniform_(0.5, 2.0, generator=torch.Generator().manual_seed(1))
            reference.bias.uniform_(-1.0, 1.0, generator=torch.Generator().manual_seed(2))
    layer.load_state_dict(reference.state_dict())
    own = bounds(rank, size)
    close = {"rtol": tolerance, "atol": tolerance}
    for step in range(3):
        whole = samples(size, shape, step, dtype)
        whole = whole[:1] if size == 2 else whole[: sum(range(size)) or 4]
        if size == 2 and len(shape) == 1:
            return  # one value per channel has no variance
        weights = torch.linspace(-1, 1, whole.numel(), dtype=dtype).view_as(whole)
        theirs, mine = whole.clone().requires_grad_(), whole[own].clone().requires_grad_()
        expected, found = reference(theirs), layer(mine)
        torch.testing.assert_close(found, expected[own], **close)
        (expected * weights).sum().backward()
        (found * weights[own]).sum().backward()
        torch.testing.assert_close(mine.grad, theirs.grad[own], **close)
    for name, value in reference.named_buffers():
        torch.testing.assert_close(dict(layer.named_buffers())[name], value, **close)
    for name, parameter in reference.named_parameters():
        total = bps.allreduce(dict(layer.named_parameters())[name].grad, op=bps.Sum)
        torch.testing.assert_close(total, parameter.grad, rtol=tolerance * 10, atol=tolerance * 10)
    layer.eval()
    reference.eval()
    if reference.track_running_stats:
        torch.testing.assert_close(layer(whole), reference(whole), **close)


def in_few_bits(bps: Any, rank: int, size: int) -> None:
    """16-bit inputs between 32-bit parameters, as mixed precision has them."""
    for dtype in (torch.float16, torch.bfloat16):
        whole = torch.randn(4 * size, 5, 3, generator=torch.Generator().manual_seed(0)).to(dtype)
        layer, reference = bps.SyncBatchNorm(5), nn.BatchNorm1d(5)
        mine = whole[4 * rank : 4 * rank + 4].clone().requires_grad_()
        found = layer(mine)
        assert found.dtype is dtype
        expected = reference(whole.float())[4 * rank : 4 * rank + 4]
        torch.testing.assert_close(found.float(), expected, rtol=2e-2, atol=2e-2)
        found.sum().backward()
        assert mine.grad.dtype is dtype and layer.weight.grad.dtype is torch.float32


def trains(bps: Any, rank: int, size: int) -> None:
    """A model with it, by a distributed optimizer, as one process with all samples."""
    reference = fill(nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)).double())
    model = nn.Sequential(nn.Linear(3, 5), bps.SyncBatchNorm(5), nn.Linear(5, 2)).double()
    model.load_state_dict(reference.state_dict())
    plain = torch.optim.SGD(reference.parameters(), lr=0.1)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    for step in range(5):
        x = torch.randn(6 * size, 3, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        for module, tuner, part in ((reference, plain, x), (model, optimizer, x[6 * rank : 6 * rank + 6])):
            tuner.zero_grad()
            module(part).pow(3).mean().backward()
            tuner.step()
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-9, atol=1e-9)


def misused(bps: Any, rank: int, size: int) -> None:
    raises(ValueError, lambda: bps.SyncBatchNorm(3)(torch.ones(3)), "2D")
    if size > 1:
        alone = bps.add_process_set([0])
        layer = bps.SyncBatchNorm(3, process_set=alone)
        if rank == 0:
            layer(torch.randn(4, 3)).sum().backward()
        else:
            raises(bps.InvalidArgumentError, lambda: layer(torch.randn(4, 3)), "is not in process set")


SCENARIOS = [as_one_process, in_few_bits, trains, misused]
"""Bodies that need nothing but (bps, rank, size)."""
