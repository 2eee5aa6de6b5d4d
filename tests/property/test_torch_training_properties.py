"""Whatever the model, a distributed step equals that of one process and is bit-identical on all ranks."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.fakes.thread_world import ThreadWorld, run_world
from tests.scenarios.models import batch, distance, fill, flat, share

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6}


@dataclass(frozen=True)
class Case:
    """A model of parallel branches, and how it is trained."""

    widths: list[int]
    dtypes: list[torch.dtype]
    used: list[set[int]]
    size: int
    partition_bytes: int
    set_to_none: bool
    passes: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    branches = draw(st.integers(1, 4))
    return Case(
        widths=draw(st.lists(st.integers(1, 40), min_size=branches, max_size=branches)),
        dtypes=draw(st.lists(st.sampled_from(list(TOLERANCE)), min_size=branches, max_size=branches)),
        used=draw(st.lists(st.sets(st.integers(0, branches - 1), min_size=1), min_size=1, max_size=4)),
        size=draw(st.integers(1, 4)),
        partition_bytes=draw(st.sampled_from([64, 256, 1024, 1 << 20])),
        set_to_none=draw(st.booleans()),
        passes=draw(st.integers(1, 2)),
    )


class Branches(nn.Module):
    def __init__(self, case: Case) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            nn.Sequential(nn.Linear(7, width), nn.Tanh(), nn.Linear(width, 2)).to(dtype)
            for width, dtype in zip(case.widths, case.dtypes, strict=True)
        )
        fill(self)

    def loss(self, x: torch.Tensor, used: set[int]) -> torch.Tensor:
        # A term for each branch: the gradients of one type must not depend on the rounding of the other.
        branches = [branch for number, branch in enumerate(self.branches) if number in used]
        terms = [branch(x.to(branch[0].weight.dtype)).square().mean().double() for branch in branches]
        return torch.stack(terms).sum()


def train(case: Case, model: Branches, optimizer: torch.optim.Optimizer, rank: int, size: int) -> None:
    for step, used in enumerate(case.used):
        optimizer.zero_grad(set_to_none=case.set_to_none)
        for micro in range(case.passes):
            x, _ = batch(10 * step + micro, inputs=7)
            model.loss(share(x, rank, size), used).backward()
        optimizer.step()


def make(model: Branches) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)


def body(bps, rank, size, case):
    model = Branches(case)
    optimizer = bps.DistributedOptimizer(make(model), backward_passes_per_step=case.passes)
    train(case, model, optimizer, rank, size)
    return model


@pytest.mark.slow
@settings(max_examples=40)
@given(cases())
def test_equals_single_process(case):
    reference = Branches(case)
    train(case, reference, make(reference), 0, 1)
    models = run_world(case.size, body, case, world=ThreadWorld(case.size, case.partition_bytes))
    for branch, expected, dtype in zip(models[0].branches, reference.branches, case.dtypes, strict=True):
        assert distance(flat(branch), flat(expected)) < TOLERANCE[dtype]
    for model in models[1:]:
        for ours, first in zip(model.parameters(), models[0].parameters(), strict=True):
            assert torch.equal(ours, first)
