"""Ulysses: each rank holds a part of the text; for attention an all-to-all gives it all of the text for some heads.

    torchrun --nproc_per_node 4 examples/parallel/ulysses.py

After attention a second all-to-all brings the parts of the text back (Jacobs et al., "DeepSpeed Ulysses", 2023). The
bytes of each rank do not grow with the number of ranks, as those of ring attention do.
"""

import torch
import torch.distributed as dist
from _job import Result, mean_over_ranks, run
from _text import GPT, WINDOW, alone, batches, loss_of, optimizer_of
from torch import Tensor
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.nn import functional


def exchanged(tensor: Tensor, split: int, join: int) -> Tensor:
    """Cuts dimension `split` over the ranks and joins what comes from them along `join`; differentiable."""
    cut = torch.stack(tensor.chunk(dist.get_world_size(), split))
    came = all_to_all_single_autograd(cut.contiguous(), None, None, dist.group.WORLD)
    return torch.cat(came.unbind(), join)


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention over the whole text; shapes (rows, heads, own part of the text, width of a head)."""
    three = exchanged(torch.stack([query, key, value]), 2, 3)
    return exchanged(functional.scaled_dot_product_attention(*three, is_causal=True), 2, 1)


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
