"""A pipeline whose stages send each other fewer bytes (`compress_pipeline`): gradients in 8 bits, activations in 16.

    torchrun --nproc_per_node 4 examples/parallel/pipeline_compressed.py

By itself `compress_pipeline(pipe)` encodes gradients only where no other work hides their way, in the epilogue of the
schedule (Optimus-CC). float64 is not encoded: with `--dtype float64` the weights are those of one process.
"""

import torch
import torch.distributed as dist
from _job import Result, collected, run
from _text import batches, loss_of, optimizer_of
from pipeline import MICROBATCHES, alone, part
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

import byteps_like.torch as bps

ALLOWED = 0.02
"""Largest difference to one process, as a share of each weight's largest element; that of the losses is below 0.1 %."""


def main() -> Result:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = part(rank, ranks)
    pipe = Schedule1F1B(PipelineStage(model, rank, ranks, "cpu"), MICROBATCHES, loss_fn=loss_of)
    # The whole model is small, hence smallest.
    bps.compress_pipeline(pipe, gradients="int8", activations="bf16", epilogue_only=False, smallest=0)
    optimizer, losses = optimizer_of(model), []
    for codes, following in batches():
        optimizer.zero_grad()
        parts: list = []
        if rank == 0:
            pipe.step(codes)
        else:
            pipe.step(**({"target": following, "losses": parts} if rank == ranks - 1 else {}))
        optimizer.step()
        losses.append(sum(loss.item() for loss in parts) / MICROBATCHES)
    dist.broadcast(mean := torch.tensor(losses), ranks - 1)
    return Result(mean.tolist(), collected(model.state_dict()))


if __name__ == "__main__":
    run(main, alone, allowed=ALLOWED)
