"""Joins world after world, with the others that do, and counts what it has open. Prints JSON, a line per world."""

import json
import os
import time
from pathlib import Path

import torch

import byteps_like.torch as bps
from byteps_like.torch.elastic.rejoining import rejoin

bps.init()
model = torch.nn.Linear(100, 100)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
state = bps.elastic.TorchState(model, optimizer, sampler=bps.elastic.ElasticSampler(range(100)), step=0)
for _ in range(6):
    state.sync()
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 100)).sum().backward()
        optimizer.step()
        state.commit()
    time.sleep(1.5)  # what is left of the worlds before goes a second after one has begun
    has = {name: len(list(Path("/proc/self", name).iterdir())) for name in ("fd", "task")}
    print(json.dumps({"event": "world", "pid": os.getpid(), **has}), flush=True)
    rejoin(lambda: None)
    state.on_reset()
bps.shutdown()
