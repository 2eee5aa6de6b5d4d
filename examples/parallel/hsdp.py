"""HSDP: weights in shards within each pair of ranks, gradients averaged over the pairs as well.

    torchrun --nproc_per_node 4 examples/parallel/hsdp.py

With several machines the shards would stay on one machine and only their gradients cross the slow link.
"""

import torch.distributed as dist
from _job import Result, mean_over_ranks, run, whole_weights
from _text import GPT, alone, batches, loss_of, optimizer_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main() -> Result:
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("replicate", "shard"))
    model = GPT()
    for block in model.blocks.values():
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
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
    run(main, alone)
