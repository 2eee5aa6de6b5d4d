"""Pipelining: each rank has some blocks of the model, pieces of the batch (microbatches) go through them one by one.

    torchrun --nproc_per_node 4 examples/parallel/pipeline.py

Schedules: GPipe (all forward, then all backward), 1F1B (they alternate, less is kept), interleaved (two stages a rank,
so less waiting), zero-bubble (the gradients of weights fill what waiting is left). All of them give the same numbers.
"""

import torch
import torch.distributed as dist
from _job import Result, collected, run
from _text import GPT, batches, loss_of, optimizer_of
from _text import alone as trained_alone
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules

SCHEDULES = ["ScheduleGPipe", "Schedule1F1B", "ScheduleInterleaved1F1B", "ScheduleInterleavedZeroBubble"]
LAYERS, MICROBATCHES = 8, 8


def alone() -> Result:
    return trained_alone(GPT(LAYERS))


def part(number: int, count: int) -> GPT:
    """Stage `number` of `count`: its share of the blocks, the embeddings in the first, the scores in the last."""
    model, size = GPT(LAYERS), LAYERS // count
    for name in range(LAYERS):
        if name // size != number:
            del model.blocks[str(name)]
    if number > 0:
        model.characters = model.places = None
    if number < count - 1:
        model.norm = model.head = None
    return model


def main(schedule: str = SCHEDULES[-1]) -> Result:
    rank, ranks, kind = dist.get_rank(), dist.get_world_size(), getattr(schedules, schedule)
    several = issubclass(kind, schedules.PipelineScheduleMulti)
    numbers = [rank, rank + ranks] if several else [rank]
    models = nn.ModuleDict({str(number): part(number, ranks * len(numbers)) for number in numbers})
    stages = [PipelineStage(models[str(number)], number, ranks * len(numbers), "cpu") for number in numbers]
    pipe = kind(stages if several else stages[0], MICROBATCHES, loss_fn=loss_of)
    optimizer, losses = optimizer_of(models), []
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
    own = {name: weight for model in models.values() for name, weight in model.state_dict().items()}
    return Result(mean.tolist(), collected(own))


if __name__ == "__main__":
    run(main, alone, *SCHEDULES)
