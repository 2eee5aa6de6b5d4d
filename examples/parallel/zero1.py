"""ZeRO-1: DistributedDataParallel whose optimizer keeps its state (of AdamW: two numbers per weight) in shards.

    torchrun --nproc_per_node 4 examples/parallel/zero1.py

Every rank updates its share of the weights and broadcasts them to the others.
"""

import torch.distributed as dist
from _digits import alone as trained_alone
from _digits import batches, network
from _job import Result, mean_over_ranks, run
from torch import optim
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

ADAM = {"lr": 3e-3, "eps": 1e-3}  # with a tiny eps, Adam would make a whole step of a rounding error of the gradient


def alone() -> Result:
    model = network()
    return trained_alone(model, optim.AdamW(model.parameters(), **ADAM))


def main() -> Result:
    model = DistributedDataParallel(network())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=optim.AdamW, **ADAM)
    losses = []
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
