"""Adasum (Maleki et al., MLSys 2021): a sum of gradients from which what they have in common is taken once.

Two gradients a, b make (1 - ab/2aa) a + (1 - ab/2bb) b: their sum where they are orthogonal, their mean where they
are equal. Ranks are joined in pairs, then pairs of pairs, so there must be a power of two of them.
"""

from __future__ import annotations

from functools import partial

import torch

from byteps_like.collectives.api import CallOptions, Group, Traffic
from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.calls.two_steps import All, InFlight, Staged


def check_ranks(tensor: torch.Tensor, size: int) -> None:
    """Raises InvalidArgumentError unless Adasum can be made of `tensor` on `size` ranks."""
    if size & (size - 1):
        raise InvalidArgumentError(f"op=Adasum needs a power of two of ranks, not {size}; use Average")
    if not tensor.is_floating_point():
        raise InvalidArgumentError(f"op=Adasum needs floating-point tensors, not {tensor.dtype}")


def combined(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The Adasum of two gradients, computed in at least float32."""
    wide = torch.promote_types(a.dtype, torch.float32)
    x, y = a.reshape(-1).to(wide), b.reshape(-1).to(wide)
    dot, xx, yy = torch.dot(x, y), torch.dot(x, x), torch.dot(y, y)
    left = 1.0 - dot / (2.0 * xx) if xx > 0 else torch.ones((), device="cpu")
    right = 1.0 - dot / (2.0 * yy) if yy > 0 else torch.ones((), device="cpu")
    return (left * x + right * y).to(a.dtype).reshape(a.shape)


def begin(lane: Group, tensor: torch.Tensor) -> InFlight:
    """Starts Adasum in the memory of `tensor`.

    Steps: a barrier, since messages can't be given up where other ranks call something else; then log2(size), in each
    of which whole tensors are exchanged with one other rank.
    """
    return Staged(lane.barrier(CallOptions(traffic=Traffic.CONTROL)), partial(_join, lane, tensor, 1))


def _join(lane: Group, tensor: torch.Tensor, distance: int) -> InFlight:
    if distance >= lane.size:
        return All([])
    peer, nbytes = lane.rank ^ distance, tensor.numel() * tensor.element_size()
    own, other = tensor.clone(), torch.empty_like(tensor)
    exchange = All([
        lane.send(own.data_ptr(), nbytes, peer, distance), lane.receive(other.data_ptr(), nbytes, peer, distance)
    ])  # fmt: skip

    def join() -> InFlight:
        # In the order of ranks, so that both come to the same bits.
        pair = (own, other) if lane.rank < peer else (other, own)
        tensor.copy_(combined(*pair))
        return _join(lane, tensor, distance * 2)

    return Staged(exchange, join)
