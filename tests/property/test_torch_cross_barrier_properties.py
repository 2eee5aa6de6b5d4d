"""Whatever the model calls, and in whatever order results land: the weights are those of the plain optimizer."""

from __future__ import annotations

import random
import threading
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import byteps_like.torch as bps
from byteps_like.torch.crossing.optimizer import CrossBarrierMixin
from byteps_like.torch.job import runtime
from byteps_like.worker.local import LocalWorker
from tests.fakes.held_worker import HeldHandle, HeldWorker
from tests.scenarios.crossing.models import OPTIMIZERS
from tests.scenarios.models import fill, flat

LAYERS = 5
CALLS = st.lists(st.integers(0, LAYERS - 1), min_size=1, max_size=7)
"""The layers that a step's forward calls, one after the other; some several times, some not at all."""
BETWEEN = st.sampled_from(["", "", "state_dict", "synchronize", "evaluate", "second backward"])


class Model(nn.Module):
    """Square layers in any order; layer 4 is the transpose of layer 0, and read without being called."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4, bias=number % 2 == 0) for number in range(LAYERS - 1))

    def forward(self, x: torch.Tensor, calls: list[int]) -> torch.Tensor:
        for number in calls:
            tied = number == LAYERS - 1
            x = torch.tanh(x @ self.layers[0].weight if tied else self.layers[number](x))
        return x


def train(model: nn.Module, optimizer: Any, steps: list[tuple[list[int], str]]) -> torch.Tensor:
    x = torch.ones(2, 4, dtype=torch.float64)
    for calls, between in steps:
        optimizer.zero_grad()
        (x * model(x, [0, *calls])).sum().backward()
        if between == "second backward":
            optimizer.zero_grad()
            model(x, [0, *calls]).square().sum().backward()
        optimizer.step()
        if between == "state_dict":
            optimizer.state_dict()
        if between == "synchronize" and isinstance(optimizer, CrossBarrierMixin):
            optimizer.synchronize()
        if between == "evaluate":
            with torch.inference_mode():
                model.eval()(x, [3, 2])
            model.train()
    model.state_dict()
    return flat(model)


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.tuples(CALLS, BETWEEN), min_size=2, max_size=5),
    kind=st.sampled_from(["momentum", "Adam", "Lion"]),
    partition=st.sampled_from([64, 128, 320, 4096]),
    seed=st.integers(0, 1 << 16),
)
def test_any_model_and_order(steps: list[tuple[list[int], str]], kind: str, partition: int, seed: int) -> None:
    model, reference = fill(Model().double()), fill(Model().double())
    with runtime.bound(shuffling(partition, seed)):
        optimizer = bps.CrossBarrier(model, OPTIMIZERS[kind](model.parameters()))
        found = train(model, optimizer, steps)
        optimizer.close()
    assert torch.equal(found, train(reference, OPTIMIZERS[kind](reference.parameters()), steps))


@settings(max_examples=40, deadline=None)
@given(
    steps=st.lists(st.tuples(CALLS, BETWEEN), min_size=2, max_size=5),
    partition=st.sampled_from([64, 128, 320, 4096]),
    seed=st.integers(0, 1 << 16),
)
def test_any_model_and_order_with_powersgd(steps: list[tuple[list[int], str]], partition: int, seed: int) -> None:
    """The reference is the same with a step() that waits."""
    found = []
    for crosses, worker in ((True, shuffling(partition, seed)), (False, LocalWorker(partition))):
        model = fill(Model().double())
        with runtime.bound(worker):
            optimizer = bps.DistributedOptimizer(
                OPTIMIZERS["momentum"](model.parameters()), model.named_parameters(),
                compression={"*weight": "powersgd:rank=1"}, cross_barrier=crosses, model=model,
            )  # fmt: skip
            weights = train(model, optimizer, steps)
            found.append((weights, optimizer.state_dict()))
            optimizer.close()
    torch.testing.assert_close(*found, rtol=0, atol=0)


def shuffling(partition: int, seed: int) -> HeldWorker:
    """Whose results land when somebody waits for one: any number of others come first."""
    chance, lock, worker = random.Random(seed), threading.Lock(), HeldWorker(partition)

    def land(awaited: HeldHandle) -> None:
        with lock:  # PowerSGD's first factors are waited for by a thread
            queue = [flight for flight in worker.flights if not flight.landed]
            chance.shuffle(queue)
            for flight in queue[: queue.index(awaited) + 1] if awaited in queue else ():
                flight.land()

    worker.on_wait, worker.holding = land, True
    return worker
