"""Ring attention: each rank holds a part of the text; keys and values travel round the ring of ranks.

    torchrun --nproc_per_node 4 examples/parallel/ring_attention.py

Softmax is put together from the parts as they come (Liu et al., "Ring Attention with Blockwise Transformers", 2023).
"""

from typing import Any

import torch
import torch.distributed as dist
from _job import Result, mean_over_ranks, run
from _text import GPT, WINDOW, alone, batches, loss_of, optimizer_of
from torch import Tensor


class Passed(torch.autograd.Function):
    """What the rank before this one holds; its gradient travels the other way."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, step: int) -> Tensor:
        """Sends `own` to the rank `step` places further."""
        ctx.step, ranks = step, dist.get_world_size()
        other = torch.empty_like(own, memory_format=torch.contiguous_format)
        after, before = (dist.get_rank() + step) % ranks, (dist.get_rank() - step) % ranks
        pair = [dist.P2POp(dist.isend, own.contiguous(), after), dist.P2POp(dist.irecv, other, before)]
        for work in dist.batch_isend_irecv(pair):
            work.wait()
        return other

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Sends the gradient back."""
        return Passed.apply(gradient, -ctx.step), None


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention over the whole text; shapes (rows, heads, own part of the text, width of a head)."""
    rank, ranks, length = dist.get_rank(), dist.get_world_size(), query.shape[2]
    places, pair = torch.arange(length), torch.stack([key, value])
    top = torch.full((*query.shape[:3], 1), -torch.inf)
    total, out = torch.zeros_like(top), torch.zeros_like(query)
    for step in range(ranks):
        owner = (rank - step) % ranks
        later = owner * length + places > (rank * length + places)[:, None]
        scores = (query @ pair[0].mT / query.shape[3] ** 0.5).masked_fill(later, -torch.inf)
        new = torch.maximum(top, scores.detach().amax(3, keepdim=True))
        weights, kept = (scores - new).exp(), (top - new).exp()
        total, out, top = total * kept + weights.sum(3, keepdim=True), out * kept + weights @ pair[1], new
        pair = Passed.apply(pair, 1) if step < ranks - 1 else pair
    return out / total


def main() -> Result:
    model, ranks, length = GPT(), dist.get_world_size(), WINDOW // dist.get_world_size()
    model.first = dist.get_rank() * length
    for block in model.blocks.values():
        block.attention.attend = attend
    optimizer, losses = optimizer_of(model), []
    own = slice(model.first, model.first + length)
    for codes, following in batches():
        optimizer.zero_grad()
        loss = loss_of(model(codes[:, own]), following[:, own])
        (loss / ranks).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        losses.append(mean_over_ranks(loss))
    return Result(losses, model.state_dict())


if __name__ == "__main__":
    run(main, alone)
