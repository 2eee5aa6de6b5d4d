"""Rank 0's models and optimizers for all ranks: those that have restored one commit are equal already."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from byteps_like.torch.job import runtime as _runtime
from byteps_like.torch.job.trees import tensors_of
from byteps_like.torch.ops.differing import broadcast_differing
from byteps_like.torch.optimizer.broadcasts import Parameters, agreed_tensors, announced, prepare_optimizer
from byteps_like.torch.reduction.feedback_state import without_residuals

_ROOT = 0


def synchronize_parameters(params: Parameters) -> None:
    """As `broadcast_parameters` from rank 0, with the same errors, but sends only what differs on some rank. Blocks."""
    broadcast_differing(_runtime.current(), agreed_tensors(params, _ROOT), _ROOT)


def synchronize_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """As `broadcast_optimizer_state` from rank 0, but sends only the tensors that differ on some rank. Blocks.

    Ranks may have other tensors than rank 0, or none: those differ.
    """
    if not prepare_optimizer(optimizer, _ROOT):
        return
    runtime = _runtime.current()
    own = without_residuals(optimizer.state_dict())
    state, tensors = announced(own, _ROOT)
    is_root = runtime.worker.rank == _ROOT
    if not is_root:
        _begin_with(tensors, tensors_of(own))
    broadcast_differing(runtime, tensors, _ROOT)
    if not is_root:
        optimizer.load_state_dict(state)


def _begin_with(tensors: Sequence[torch.Tensor], own: Iterable[torch.Tensor]) -> None:
    """Fills `tensors` with what this rank has in their places. It may be anything: what differs is overwritten."""
    for tensor, mine in zip(tensors, own, strict=False):
        if (tensor.shape, tensor.dtype) == (mine.shape, mine.dtype):
            tensor.copy_(mine.detach())
