"""FSDP2 (`fully_shard`): weights, gradients and optimizer state lie in shards, gathered block by block when needed.

    torchrun --nproc_per_node 4 examples/parallel/fsdp2.py

The norm by which gradients are clipped is that of all shards together.
"""

import torch.distributed as dist
from _job import Result, mean_over_ranks, run, whole_weights
from _text import GPT, batches, loss_of, optimizer_of
from _text import alone as trained_alone
from torch import nn
from torch.distributed.fsdp import fully_shard

CLIP = 0.5


def alone() -> Result:
    return trained_alone(clip=CLIP)


def main() -> Result:
    model = GPT()
    for block in model.blocks.values():
        fully_shard(block)
    fully_shard(model)
    optimizer, losses = optimizer_of(model), []
    own = slice(dist.get_rank(), None, dist.get_world_size())
    for codes, following in batches():
        optimizer.zero_grad()
        loss = loss_of(model(codes[own]), following[own])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        losses.append(mean_over_ranks(loss))
    return Result(losses, whole_weights(model))


if __name__ == "__main__":
    run(main, alone)
