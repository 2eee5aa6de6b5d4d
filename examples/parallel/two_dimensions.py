"""2-D: tensor and sequence parallelism within each pair of ranks, FSDP2 over the pairs.

    torchrun --nproc_per_node 4 examples/parallel/two_dimensions.py

Every weight is cut twice: by tensor parallelism, and what is left of it by FSDP2.
"""

import torch.distributed as dist
from _job import Result, mean_over_ranks, run, whole_weights
from _tensor_plan import cut
from _text import GPT, alone, batches, loss_of, optimizer_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import loss_parallel


def main() -> Result:
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("data", "tensor"))
    model = GPT()
    cut(model, mesh["tensor"])
    for block in model.blocks.values():
        fully_shard(block, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    optimizer, losses = optimizer_of(model), []
    own = slice(mesh.get_local_rank("data"), None, mesh["data"].size())
    for codes, following in batches():
        optimizer.zero_grad()
        with loss_parallel():
            loss = loss_of(model(codes[own]), following[own])
            loss.backward()
        optimizer.step()
        losses.append(mean_over_ranks(loss.full_tensor()))
    return Result(losses, whole_weights(model))


if __name__ == "__main__":
    run(main, alone)
