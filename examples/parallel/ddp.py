"""DistributedDataParallel: every rank computes its rows of each batch, gradients are averaged during backward.

torchrun --nproc_per_node 2 examples/parallel/ddp.py
"""

import torch.distributed as dist
from _digits import alone, batches, network, optimizer_of
from _job import Result, mean_over_ranks, run
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel


def main() -> Result:
    model = DistributedDataParallel(network(), bucket_cap_mb=0.01)  # several buckets, small as the model is
    optimizer, losses = optimizer_of(model), []
    own = slice(dist.get_rank(), None, dist.get_world_size())
    for pictures, labels in batches():
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(pictures[own]), labels[own])
        loss.backward()
        optimizer.step()
        losses.append(mean_over_ranks(loss))
    return Result(losses, model.module.state_dict())


if __name__ == "__main__":
    run(main, alone)
