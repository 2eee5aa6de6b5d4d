"""Post-local SGD: after some steps with averaged gradients the pairs of ranks go their own ways, and average weights.

    torchrun --nproc_per_node 4 examples/parallel/post_local_sgd.py

Gradients are averaged over all ranks for 4 steps, then within each pair only; every third step the weights are averaged
over all ranks (Lin et al., "Don't Use Large Mini-Batches, Use Local SGD", 2020). The one process trains a model a pair.
"""

import torch.distributed as dist
from _digits import batches, network, optimizer_of
from _job import Result, collected, mean_over_ranks, run
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

TOGETHER, PERIOD = 4, 3


def alone() -> Result:
    """Two models, one for each pair of four ranks; a pair sees every other row."""
    models = [network(), network()]
    optimizers, losses = [optimizer_of(model) for model in models], []
    for step, (pictures, labels) in enumerate(batches()):
        parts = [functional.cross_entropy(model(pictures[i::2]), labels[i::2]) for i, model in enumerate(models)]
        for loss, optimizer in zip(parts, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
        pairs = list(zip(*(model.parameters() for model in models), strict=True))
        if step < TOGETHER:
            for one, other in pairs:
                one.grad.add_(other.grad).mul_(0.5)
                other.grad.copy_(one.grad)
        for optimizer in optimizers:
            optimizer.step()
        if step >= TOGETHER and (step - TOGETHER) % PERIOD == 0:
            for one, other in pairs:
                one.data.add_(other.data).mul_(0.5)
                other.data.copy_(one.data)
        losses.append(sum(loss.item() for loss in parts) / 2)
    return Result(losses, models[0].state_dict() | {f"other.{k}": v for k, v in models[1].state_dict().items()})


def main() -> Result:
    rank, pairs = dist.get_rank(), [[0, 2], [1, 3]]
    groups = [dist.new_group(pair) for pair in pairs]
    model = DistributedDataParallel(network())
    model.register_comm_hook(PostLocalSGDState(None, groups[rank % 2], TOGETHER), post_localSGD_hook)
    averager = PeriodicModelAverager(period=PERIOD, warmup_steps=TOGETHER)
    optimizer, losses = PostLocalSGDOptimizer(optimizer_of(model), averager), []
    for pictures, labels in batches():
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(pictures[rank::4]), labels[rank::4])
        loss.backward()
        optimizer.step()
        losses.append(mean_over_ranks(loss))
    own = {k if rank % 2 == 0 else f"other.{k}": v for k, v in model.module.state_dict().items()}
    return Result(losses, collected(own))


if __name__ == "__main__":
    run(main, alone)
