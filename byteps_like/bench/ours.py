"""Our own doors: the groups of `byteps_like.collectives`, and the c10d backend over them."""

from __future__ import annotations

from byteps_like.bench.contenders import Contender, TorchGroup
from byteps_like.bench.plan import Plan


def make_native(plan: Plan, rank: int) -> Contender:
    """Groups called with addresses."""
    raise NotImplementedError


def make_c10d() -> Contender:
    """torch.distributed over the backend "byteps"."""
    import torch.distributed as dist

    import byteps_like.torch  # noqa: F401  registers the backend

    return TorchGroup(dist.new_group(backend="byteps"))
