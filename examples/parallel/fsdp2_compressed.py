"""FSDP2 after ZeRO++ (`compress_fsdp`): weights cross hosts in 8 bits and once per step, gradients in 4 bits.

    torchrun --nproc_per_node 4 examples/parallel/fsdp2_compressed.py

On one machine nothing is encoded, and the weights are those of one process; with `--nnodes 2` and `--rdzv_endpoint`
they are nearly.
"""

import torch.distributed as dist
from _job import Result, mean_over_ranks, run, whole_weights
from _text import GPT, alone, batches, loss_of, optimizer_of
from torch.distributed.fsdp import fully_shard

import byteps_like.torch as bps

ALLOWED = 0.5
"""Largest difference to one process, as a share of each weight's largest element. It is that of the biases: they begin
at zero, and their gradients share a scale with larger ones. Losses differ by less than 1 %."""


def main() -> Result:
    model, within = GPT(), bps.ranks_per_host()
    for block in model.blocks.values():
        fully_shard(block, reshard_after_forward=within)
    fully_shard(model)
    bps.compress_fsdp(model, weights="int8", gradients="int4", secondary=True, smallest=0)  # all of this model is small
    optimizer, losses = optimizer_of(model), []
    own = slice(dist.get_rank(), None, dist.get_world_size())
    for codes, following in batches():
        optimizer.zero_grad()
        loss = loss_of(model(codes[own]), following[own])
        loss.backward()
        optimizer.step()
        losses.append(mean_over_ranks(loss))
    return Result(losses, whole_weights(model))


if __name__ == "__main__":
    run(main, alone, allowed=ALLOWED)
