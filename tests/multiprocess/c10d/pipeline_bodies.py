"""What the ranks of test_pipeline_compression.py run: a pipeline whose ranks are on hosts of their own."""

from __future__ import annotations

import importlib
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, schedules

import byteps_like.torch as bps
from byteps_like.errors import MismatchError
from tests.fakes.native_groups import sent_across
from tests.multiprocess.c10d.fsdp_bodies import hosts_of

CHUNKS, ROWS, WIDTH, OUT = 6, 5, 37, 3


def model(number: int, count: int) -> nn.Module:
    torch.manual_seed(number)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, OUT if number == count - 1 else WIDTH))


class Pipeline:
    """This rank's stages under a schedule of torch's, and what comes of two steps."""

    def __init__(self, schedule: str, dtype: torch.dtype, **options: Any) -> None:
        rank, ranks, kind = dist.get_rank(), dist.get_world_size(), getattr(schedules, schedule)
        several = issubclass(kind, schedules.PipelineScheduleMulti)
        numbers = [rank, rank + ranks] if several else [rank]
        count = ranks * len(numbers)
        self.models = nn.ModuleList([model(number, count).to(dtype) for number in numbers])
        stages = [PipelineStage(one, number, count, "cpu") for one, number in zip(self.models, numbers, strict=True)]
        self.pipe = kind(stages if several else stages[0], CHUNKS, loss_fn=lambda out, _: out.square().mean())
        if options:
            bps.compress_pipeline(self.pipe, smallest=0, **options)
        x = torch.randn(CHUNKS * ROWS, WIDTH, generator=torch.Generator().manual_seed(9)).to(dtype)
        self._arguments = (x,) if rank == 0 else ()
        self._named = {"target": torch.zeros(CHUNKS)} if rank == ranks - 1 else {}

    def gradients(self) -> Tensor:
        """Of one step."""
        for parameter in self.models.parameters():
            parameter.grad = None
        self.pipe.step(*self._arguments, **self._named)
        return torch.cat([parameter.grad.flatten() for parameter in self.models.parameters()])


def compared(schedule: str, dtype: str, options: dict[str, Any]) -> dict[str, Any]:
    """How far the gradients of a second step are from those without compression, and what this rank sends in it."""
    torch.set_default_dtype(torch.float32)
    with hosts_of(1) as group:
        plain, coded = (Pipeline(schedule, getattr(torch, dtype), **some) for some in ({}, options))
        wanted, _ = plain.gradients(), coded.gradients()
        before = sent_across(group)
        found = coded.gradients()
        sent = sent_across(group) - before
        return {"sent": sent, "error": ((found - wanted).norm() / wanted.norm()).item()}


def different() -> str:
    """What a rank is told that was given other codecs than the next one."""
    torch.set_default_dtype(torch.float32)
    try:
        Pipeline("Schedule1F1B", torch.float32, gradients="int8" if dist.get_rank() else "int4")
    except MismatchError as error:
        return str(error)
    return ""


def example() -> dict[str, Any]:
    """examples/parallel/pipeline_compressed.py in float32."""
    torch.set_default_dtype(torch.float32)
    module = importlib.import_module("pipeline_compressed")
    result, one = module.main(), module.alone()
    found = {"difference": result.difference(one), "allowed": module.ALLOWED}
    return {**found, "losses": result.losses, "alone": one.losses}
