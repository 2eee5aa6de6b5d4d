"""Comes to an elastic job, as `HOW` says: the "first" one trains nothing until there are two. Prints JSON, a line each.

A second one comes while the world runs. It makes what training needs, and then joins by its first operation
("operation") or by `run` ("run"), or goes again without having joined: by "shutdown", or "suspend"; with `GO`, a path,
once there is such a file.
"""

import json
import os
import time
from pathlib import Path

import torch

import byteps_like.torch as bps

HOW = os.environ["HOW"]


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def place() -> list[int]:
    return [bps.rank(), bps.size(), bps.local_rank(), bps.local_size()]


bps.init()
say(event="came", place=place())
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
wrapped = bps.DistributedDataParallel(torch.nn.Linear(2, 2))
sampler = bps.elastic.ElasticSampler(range(12))
state = bps.elastic.TorchState(model, optimizer, sampler=sampler, other=wrapped, step=0)
say(event="made", place=place(), samples=len(sampler))
while "GO" in os.environ and not Path(os.environ["GO"]).exists():
    time.sleep(0.02)


@bps.elastic.run
def train(state):
    while bps.size() < 2:
        time.sleep(0.02)
        state.commit()
    optimizer.zero_grad()
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()


if HOW == "operation":
    bps.stats()
    say(event="joined", place=place())
if HOW == "shutdown":
    bps.shutdown()
elif HOW == "suspend":
    bps.suspend()
    say(event="suspended", place=place())
else:
    train(state)
    say(event="end", place=place(), samples=len(sampler))
    bps.shutdown()
