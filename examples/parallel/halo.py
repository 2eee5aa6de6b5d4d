"""Halo exchange: each rank holds some rows of every image; a convolution needs one row of each neighbour.

    torchrun --nproc_per_node 4 examples/parallel/halo.py

For images that are too large for one machine. The exchange is a batch of sends and receives between neighbours; the
gradients of the borrowed rows travel back.
"""

from typing import Any

import torch
import torch.distributed as dist
from _digits import RowsNet, batches, optimizer_of
from _digits import alone as trained_alone
from _job import Result, run
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_reduce
from torch.nn import functional


def traded(up: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
    """Gives `up` to the rank above and `down` to the one below; returns what they gave. Zeros at the edges."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    above, below = torch.zeros_like(up), torch.zeros_like(down)
    pairs = [(rank - 1, up.contiguous(), above)] if rank > 0 else []
    pairs += [(rank + 1, down.contiguous(), below)] if rank < last else []
    sends = [dist.P2POp(dist.isend, own, peer) for peer, own, _ in pairs]
    for work in dist.batch_isend_irecv(sends + [dist.P2POp(dist.irecv, other, peer) for peer, _, other in pairs]):
        work.wait()
    return above, below


class Bordered(torch.autograd.Function):
    """The own rows with the nearest row of each neighbour above and below them."""

    @staticmethod
    def forward(_ctx: Any, rows: Tensor) -> Tensor:
        """Borrows rows."""
        above, below = traded(rows[:, :, :1], rows[:, :, -1:])
        return torch.cat([above, rows, below], 2)

    @staticmethod
    def backward(_ctx: Any, gradient: Tensor) -> Tensor:
        """Gives their gradients back."""
        above, below = traded(gradient[:, :, :1], gradient[:, :, -1:])
        own = gradient[:, :, 1:-1].clone()
        own[:, :, :1] += above
        own[:, :, -1:] += below
        return own


def alone() -> Result:
    return trained_alone(RowsNet(lambda rows: functional.pad(rows, (0, 0, 1, 1)), nn.Identity()))


def main() -> Result:
    model, (rank, ranks) = (
        RowsNet(Bordered.apply, lambda scores: all_reduce(scores, "sum", dist.group.WORLD)),
        (dist.get_rank(), dist.get_world_size()),
    )
    optimizer, losses = optimizer_of(model), []
    for pictures, labels in batches():
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(pictures.chunk(ranks, 2)[rank]), labels)
        (loss / ranks).backward()  # the backward of the sum of scores adds up the ranks' gradients
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        losses.append(loss.item())
    return Result(losses, model.state_dict())


if __name__ == "__main__":
    run(main, alone)
