"""What the ranks of test_parallel_examples.py run."""

from __future__ import annotations

import functools
import importlib
from typing import Any


def compared(example: str, dtype: str, *variant: str) -> dict[str, Any]:
    """Runs an example and the same training by one process; how far the two are from each other."""
    import torch

    torch.set_default_dtype(getattr(torch, dtype))
    module, job = importlib.import_module(example), importlib.import_module("_job")
    result, one = module.main(*variant), _alone(example, dtype)
    return {
        "difference": result.difference(one),
        "allowed": job.TOLERANCE[torch.get_default_dtype()],
        "losses": result.losses,
        "fingerprint": {name: weight.double().sum().item() for name, weight in result.weights.items()},
    }


@functools.cache
def _alone(example: str, dtype: str) -> Any:
    return importlib.import_module(example).alone()


def without_exchange() -> dict[str, Any]:
    """The training of ddp.py by a rank that exchanges nothing: what a comparison must notice."""
    import torch
    import torch.distributed as dist

    torch.set_default_dtype(torch.float32)
    digits, job = importlib.import_module("_digits"), importlib.import_module("_job")
    one = digits.alone()
    kept, own = digits.batches, slice(dist.get_rank(), None, dist.get_world_size())
    digits.batches = lambda: ((pictures[own], labels[own]) for pictures, labels in kept())
    try:
        return {"difference": digits.alone().difference(one), "allowed": job.TOLERANCE[torch.float32]}
    finally:
        digits.batches = kept
